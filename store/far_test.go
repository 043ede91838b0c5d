package store

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/spec"
)

// both runs a test over either transport.
func both(t *testing.T, test func(t *testing.T, tls bool)) {
	for _, tls := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "tls"}[tls], func(t *testing.T) { test(t, tls) })
	}
}

func TestObjectsOfOtherNodes(t *testing.T) {
	both(t, func(t *testing.T, tls bool) {
		f := newFarRig(t, farOptions{nodes: 2, tls: tls})
		c := f.client(1, 7)
		sent := int64(0)
		for _, size := range []int{0, 1, 1000, ChunkSize - 1, ChunkSize, ChunkSize + 1, 3*ChunkSize + 77} {
			id, content := f.put(0, size)
			f.same(c, id, content)
			sent += int64(size)
			f.hosts[0].hasSent(t, sent)
			f.same(c, id, content)
			f.hosts[0].hasSent(t, sent)
			status := f.hosts[1].Status().Objects
			if len(status) != 1 || status[0].State != "copy" || status[0].What != "a batch of noise" || status[0].Bytes != uint64(size) {
				t.Errorf("%d bytes: %+v", size, status)
			}
			f.drop(id)
			f.empty()
		}
		if pooled := f.hosts[1].Status().Pooled; pooled == 0 {
			t.Error("no memory was kept for the next copy")
		}
		// What nobody knows of.
		_, err := c.Open(1 << 32)
		wantError(t, err, spec.CodeNotFound, "node 0", "node-1", "100000000")
		_, err = c.Open(1<<48 | 5)
		wantError(t, err, spec.CodeNotFound)
		f.empty()
	})
}

// Only the chunks that are needed travel.
func TestSomeBytesOfOtherNodes(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2})
	c := f.client(1, 7)
	id, content := f.put(0, 10*ChunkSize+5)
	views, err := c.OpenSome(id)
	if err != nil {
		t.Fatal(err)
	}
	v := views[0]
	f.hosts[0].hasSent(t, ChunkSize)
	for _, need := range []struct {
		from, to uint64
		sent     int64
	}{
		{10, 20, ChunkSize},
		{5 * ChunkSize, 5*ChunkSize + 1, 2 * ChunkSize},
		{5*ChunkSize - 1, 6 * ChunkSize, 3 * ChunkSize},
		{9 * ChunkSize, 11 * ChunkSize, 4*ChunkSize + 5},
		{0, 0, 4*ChunkSize + 5},
		{1 << 40, 1 << 41, 4*ChunkSize + 5},
	} {
		if err := v.Need(need.from, need.to); err != nil {
			t.Fatal(err)
		}
		f.hosts[0].hasSent(t, need.sent)
		from, to := min(need.from, uint64(len(content))), min(need.to, uint64(len(content)))
		if !bytes.Equal(v.Bytes[from:to], content[from:to]) {
			t.Errorf("bytes %d to %d are others", from, to)
		}
	}
	// Who needs all gets the rest.
	f.same(c, id, content)
	f.hosts[0].hasSent(t, int64(len(content)))
	v.Bytes[0]++ // which nobody else sees
	f.same(f.client(1, 8), id, content)
	v.Close()
	if err := (&View{Object: id, c: c, partial: true}).Need(0, 1); spec.AsError(err).Code != spec.CodeInvalid {
		t.Errorf("bytes of what is not open: %v", err)
	}
	f.drop(id)
	f.empty()
}

// Many who need the same at once have it fetched once.
func TestOnceForANode(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2})
	id, content := f.put(0, 8*ChunkSize)
	small, few := f.put(0, 100)
	var wg sync.WaitGroup
	for holder := range uint64(8) {
		c := f.client(1, holder+1)
		wg.Go(func() {
			views, err := c.Open(id, small)
			if err != nil {
				t.Error(err)
				return
			}
			if !bytes.Equal(views[0].Bytes, content) || !bytes.Equal(views[1].Bytes, few) {
				t.Error("other bytes")
			}
			views[0].Close()
			views[1].Close()
		})
	}
	wg.Wait()
	f.hosts[0].hasSent(t, int64(len(content)+len(few)))
	f.drop(id)
	f.drop(small)
	f.empty()
}

// A broadcast to many nodes loads none with more than its share.
func TestAlongATree(t *testing.T) {
	both(t, func(t *testing.T, tls bool) {
		const nodes = 9
		f := newFarRig(t, farOptions{nodes: nodes, tls: tls, change: func(o *Options) { o.Budget = 64 * mib }})
		id, content := f.put(0, 6*ChunkSize+100)
		var wg sync.WaitGroup
		for node := 1; node < nodes; node++ {
			c := f.client(node, uint64(node))
			wg.Go(func() {
				views, err := c.Open(id)
				if err != nil {
					t.Error(err)
					return
				}
				defer views[0].Close()
				if !bytes.Equal(views[0].Bytes, content) {
					t.Errorf("node %d has others", node)
				}
			})
		}
		wg.Wait()
		f.drop(id)
		f.empty()
		f.haveSent((nodes-1)*int64(len(content)), lease.Fanout*int64(len(content)))
	})
}

func TestSpilledAtItsSource(t *testing.T) {
	both(t, func(t *testing.T, tls bool) {
		dir := t.TempDir()
		f := newFarRig(t, farOptions{nodes: 2, tls: tls, change: func(o *Options) {
			if o.Node == 0 {
				o.Budget, o.SpillDir, o.SpillLimit = 12*mib, dir, 256*mib
			}
		}})
		id, content := f.put(0, 9*mib)
		other, _ := f.put(0, 9*mib)
		if f.hosts[0].Status().Spilled == 0 {
			t.Fatal("nothing is spilled")
		}
		f.same(f.client(1, 7), id, content)
		f.drop(id)
		f.drop(other)
		f.empty()
	})
}

// A copy has to fit; others make room for it, as they can be had again.
func TestCopiesMakeRoom(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2, change: func(o *Options) {
		if o.Node == 1 {
			o.Budget = 20 * mib
		}
	}})
	c := f.client(1, 7)
	first, one := f.put(0, 9*mib)
	second, two := f.put(0, 9*mib+5)
	third, three := f.put(0, 9*mib+9)
	for range 2 {
		f.same(c, first, one)
		f.same(c, second, two)
		f.same(c, third, three)
	}
	views := open(t, c, first, second)
	_, err := c.Open(third)
	wantError(t, err, spec.CodeStoreFull, "node-1", "no room", "a copy from node 0", "process")
	huge, _ := f.put(0, 30*mib)
	_, err = c.Open(huge)
	wantError(t, err, spec.CodeStoreFull, "more than its whole budget", "of node 0")
	views[0].Close()
	f.same(c, third, three)
	if !bytes.Equal(views[1].Bytes, two) {
		t.Error("a view has changed")
	}
	views[1].Close()
	// Own objects push copies out, too.
	own := put(t, c, 15*mib, 3)
	if err := c.Free(own); err != nil {
		t.Error(err)
	}
	for _, id := range []uint64{first, second, third, huge} {
		f.drop(id)
	}
	f.empty()
}

// What comes wrong is noticed, and got again; not for ever.
func TestWrongChunks(t *testing.T) {
	both(t, func(t *testing.T, tls bool) {
		f := newFarRig(t, farOptions{nodes: 2, tls: tls})
		c := f.client(1, 7)
		id, content := f.put(0, 5*ChunkSize)
		var left atomic.Int64
		flip := func(w http.ResponseWriter, r *http.Request) bool {
			if left.Add(-1) < 0 {
				return false
			}
			chunk, _ := chunkOf(r.Header.Get("Range"))
			at := bytesOf(chunk, uint64(len(content)))
			bad := bytes.Clone(content[at.from:at.to])
			w.Header().Set(sizeHeader, fmt.Sprint(len(content)))
			w.Header().Set(sumHeader, fmt.Sprintf("%08x", crcOf(bad)))
			bad[len(bad)/2]++
			w.Header().Set("Content-Length", fmt.Sprint(len(bad)))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(bad)
			return true
		}
		f.hosts[0].spoiled(flip)
		left.Store(2)
		f.same(c, id, content)
		f.drop(id)
		f.empty()
		id, content = f.put(0, 5*ChunkSize)
		left.Store(1 << 40)
		_, err := c.Open(id)
		wantError(t, err, spec.CodeProtocol, "corrupt", "node-0", f.hosts[0].address, fmt.Sprintf("%x", id), "node-1")
		left.Store(0)
		f.same(c, id, content)
		f.drop(id)
		f.empty()
	})
}

// A stream that ends too early goes on elsewhere, or once more.
func TestShortChunks(t *testing.T) {
	both(t, func(t *testing.T, tls bool) {
		f := newFarRig(t, farOptions{nodes: 2, tls: tls})
		c := f.client(1, 7)
		id, content := f.put(0, 5*ChunkSize)
		var n atomic.Int64
		f.hosts[0].spoiled(func(w http.ResponseWriter, r *http.Request) bool {
			if n.Add(1)%3 != 0 {
				return false
			}
			chunk, _ := chunkOf(r.Header.Get("Range"))
			at := bytesOf(chunk, uint64(len(content)))
			w.Header().Set(sizeHeader, fmt.Sprint(len(content)))
			w.Header().Set(sumHeader, fmt.Sprintf("%08x", crcOf(content[at.from:at.to])))
			w.Header().Set("Content-Length", fmt.Sprint(at.to-at.from))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(content[at.from : at.from+1000])
			panic(http.ErrAbortHandler)
		})
		f.same(c, id, content)
		f.drop(id)
		f.empty()
	})
}

// What is no chunk of the object at all.
func TestWrongAnswers(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2})
	c := f.client(1, 7)
	id, content := f.put(0, 100)
	for text, header := range map[string]map[string]string{
		"how large":            {sumHeader: "00000000"},
		"no sum":               {sizeHeader: "100", sumHeader: "x"},
		"bytes of the chunk":   {sizeHeader: "101", sumHeader: "0"},
		"how large the object": {sizeHeader: "-5", sumHeader: "0"},
	} {
		f.hosts[0].spoiled(func(w http.ResponseWriter, _ *http.Request) bool {
			for name, value := range header {
				w.Header().Set(name, value)
			}
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(content)
			return true
		})
		_, err := c.Open(id)
		wantError(t, err, spec.CodeProtocol, text, "node-0")
	}
	f.drop(id)
	f.empty()
}

// Nobody is sent elsewhere.
func TestRedirects(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2})
	f.hosts[1].farPatience = 0
	id, _ := f.put(0, 100)
	f.hosts[0].spoiled(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
		return true
	})
	_, err := f.client(1, 7).Open(id)
	wantError(t, err, spec.CodeNodeLost, "302")
	f.drop(id)
	f.empty()
}

func TestWhoMayAsk(t *testing.T) {
	t.Run("token", func(t *testing.T) {
		f := newFarRig(t, farOptions{nodes: 2, peers: func(node int, p *Peers) {
			if node == 1 {
				p.Token = "guess"
			}
		}})
		id, _ := f.put(0, 100)
		_, err := f.client(1, 7).Open(id)
		wantError(t, err, spec.CodeProtocol, "401", "token", "node-0")
		for path, want := range map[string]int{"/objects/xyz": 400, fmt.Sprintf("/objects/%x", id): 400, "/": 404} {
			req, _ := http.NewRequest(http.MethodGet, "http://"+f.hosts[0].address+path, http.NoBody)
			req.Header.Set("Authorization", "Bearer "+peerToken)
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s: %s", path, resp.Status)
			}
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		f.drop(id)
		f.empty()
	})
	t.Run("certificate", func(t *testing.T) {
		var authorities [2]*secure.Authority
		for i := range authorities {
			var err error
			if authorities[i], err = secure.NewAuthority(); err != nil {
				t.Fatal(err)
			}
		}
		f := newFarRig(t, farOptions{nodes: 2, tls: true, authority: func(node int) *secure.Authority { return authorities[node] }})
		id, _ := f.put(0, 100)
		_, err := f.client(1, 7).Open(id)
		wantError(t, err, spec.CodeProtocol, "certificate", "node-0")
		f.drop(id)
		f.empty()
	})
	t.Run("none", func(t *testing.T) {
		f := newFarRig(t, farOptions{nodes: 2, tls: true, peers: func(node int, p *Peers) {
			if node == 1 {
				p.TLS.Certificates, p.TLS.GetClientCertificate = nil, nil
			}
		}})
		id, _ := f.put(0, 100)
		_, err := f.client(1, 7).Open(id)
		wantError(t, err, spec.CodeProtocol, "certificate", "node-0")
		f.drop(id)
		f.empty()
	})
	t.Run("another node", func(t *testing.T) {
		f := newFarRig(t, farOptions{nodes: 3, tls: true})
		id, _ := f.put(0, 100)
		f.hosts[0].address = f.hosts[2].address
		_, err := f.client(1, 7).Open(id)
		wantError(t, err, spec.CodeProtocol, "node-0.muster")
		f.drop(id)
		f.empty()
	})
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, sumTable) }
