package store

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// raw is a connection for frames that no client of ours sends.
type raw struct {
	t testing.TB
	*wire.Conn
}

func (r *rig) raw(hello wire.Hello) (*raw, error) {
	r.Helper()
	conn, err := wire.Dial(filepath.Join(r.dir, "agent-3.sock"))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	_ = conn.NetConn().SetDeadline(time.Now().Add(patience))
	_, err = wire.Join(conn, hello)
	return &raw{r, conn}, err
}

func body(verb string, m any) []byte {
	b := msgp.AppendArrayHeader(nil, 2)
	b = msgp.AppendString(b, verb)
	b, err := msgp.AppendIntf(b, m)
	if err != nil {
		panic(err)
	}
	return b
}

func (c *raw) ask(body []byte) (wire.Frame, error) {
	c.Send(wire.Header{Kind: wire.KindRequest, ID: 5}, body, nil)
	return c.Read()
}

// fails wants an error as the answer, and the connection to go on.
func (c *raw) fails(body []byte, code spec.Code, words ...string) {
	c.t.Helper()
	f, err := c.ask(body)
	if err != nil || f.Kind != wire.KindResponse || f.Flags&wire.FlagError == 0 || f.ID != 5 {
		c.t.Fatalf("got %+v, %v", f, err)
	}
	wantError(c.t, wire.ReadError(f.Body), code, words...)
}

func TestRefusals(t *testing.T) {
	r := newRig(t, nil)
	_, err := Dial(r.dir, 3, "guess", 1)
	wantError(t, err, spec.CodeAuth, "store of node-3")
	_, err = Dial(r.dir, 3, "", 1)
	wantError(t, err, spec.CodeAuth)
	_, err = Dial(r.dir, 4, token, 1)
	wantError(t, err, spec.CodeNodeLost, "the store of node 4 is out of reach")
	here, there := net.Pipe()
	go r.Serve(wire.NewConn(there), wire.Hello{Token: token})
	f, err := wire.NewConn(here).Read()
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, wire.ReadError(f.Body), spec.CodeProtocol, "unix socket")
	here.Close()
}

func TestBadRequests(t *testing.T) {
	r := newRig(t, nil)
	c, err := r.raw(wire.Hello{Role: wire.RoleStore, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	c.fails(body("melt", map[string]any{}), spec.CodeProtocol, `no request "melt"`)
	c.fails(body("seal", map[string]any{"object": 1}), spec.CodeProtocol, `no request "seal"`)
	c.fails([]byte{0x91, 0xa1, 'x'}, spec.CodeProtocol)
	c.fails(body("alloc", map[string]any{"size": "much"}), spec.CodeProtocol, "cannot be read")
	c.fails(body("alloc", map[string]any{"size": -1}), spec.CodeProtocol, "cannot be read")
	c.fails(body("alloc", 7), spec.CodeProtocol, "cannot be read")
	c.fails(append(body("alloc", map[string]any{"size": 1}), 1), spec.CodeProtocol, "1 bytes too many")
	many := append(msgp.AppendString([]byte{0x92}, "open"), append(msgp.AppendString([]byte{0x81}, "objects"), 0xdd, 0xff, 0xff, 0xff, 0xff)...)
	c.fails(many, spec.CodeProtocol, "claims 4294967295 elements in 0 bytes")
	c.fails(body("open", map[string]any{"objects": []any{uint64(12345)}}), spec.CodeNotFound, "not of this store")
	if f, err := c.ask(body("open", map[string]any{"objects": []any{}, "later": 1})); err != nil || f.Flags != 0 {
		t.Errorf("an open of nothing: %+v, %v", f, err)
	}
	// Notices on what is not there are nobody's harm.
	for _, b := range [][]byte{
		body("seal", map[string]any{"object": 1, "size": 1, "what": "x"}), body("free", map[string]any{"object": 1}),
		body("close", map[string]any{"objects": []any{[]any{1, 1}, []any{2, -5}}}), body("from_the_future", map[string]any{}),
	} {
		c.Send(wire.Header{Kind: wire.KindNotice}, b, nil)
	}
	// Several requests at once are answered one after the other.
	for range 20 {
		c.Queue(wire.Header{Kind: wire.KindRequest, ID: 6}, nil, body("open", map[string]any{"objects": []any{}}), nil)
	}
	c.Flush()
	for range 20 {
		if f, err := c.Read(); err != nil || f.Flags != 0 || f.ID != 6 {
			t.Fatalf("%+v, %v", f, err)
		}
	}
}

// What makes the rest of the stream uncertain ends it, with the reason.
func TestStreamsThatCannotBeTrusted(t *testing.T) {
	for name, frame := range map[string][]byte{
		"a kind that is none of a store's": wire.AppendFrame(nil, wire.Header{Kind: wire.KindLeg}, []byte{0xc0}, nil),
		"a notice that cannot be read":     wire.AppendFrame(nil, wire.Header{Kind: wire.KindNotice}, []byte{0xc1}, nil),
		"a close that cannot be read":      wire.AppendFrame(nil, wire.Header{Kind: wire.KindNotice}, body("close", map[string]any{"objects": []any{1}}), nil),
		"a frame that is too large":        {0, 0, 0x40, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			c, err := r.raw(wire.Hello{Role: wire.RoleStore, Token: token})
			if err != nil {
				t.Fatal(err)
			}
			c.QueueBytes(frame)
			c.Flush()
			f, err := c.Read()
			if err != nil || f.Kind != wire.KindClose || wire.ReadError(f.Body).Code != spec.CodeProtocol {
				t.Errorf("got %+v, %v", f, err)
			}
			if _, err := c.Read(); !errors.Is(err, io.EOF) {
				t.Errorf("it goes on: %v", err)
			}
		})
	}
}

// More descriptors than one message takes.
func TestManySegmentsAtOnce(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Budget = 200 * mib })
	c, reader := r.client(1), r.client(2)
	var ids []uint64
	for i := range 2*maxRights + 20 {
		ids = append(ids, put(t, c, 100, byte(i)))
	}
	for i, v := range open(t, reader, ids...) {
		if err := filled(v.Bytes, 100, byte(i)); err != nil {
			t.Error(i, err)
		}
		v.Close()
	}
}

func TestTooManySegments(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Segments = 4 })
	c := r.client(1)
	var ids []uint64
	for range 4 {
		ids = append(ids, put(t, c, 100, 1))
	}
	_, err := c.Alloc(mib)
	wantError(t, err, spec.CodeStoreFull, "4 segments", "no descriptors")
	if err := c.Free(ids[0]); err != nil {
		t.Fatal(err)
	}
	put(t, c, mib, 1)
}

// Everything at once, with hardly any room: what is read is what was written.
func TestConcurrentClients(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Budget = 6 * mib })
	r.fullPatience = patience
	clients := []*Client{r.client(1), r.client(2), r.client(3)}
	var mu sync.Mutex
	var shared []uint64
	expect := map[uint64]int{}
	var busy sync.WaitGroup
	for g := range 6 {
		busy.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 2))
			c := clients[g%3]
			for range 60 {
				size := 1 + random.IntN(mib)
				d, err := c.Alloc(uint64(size))
				if err != nil {
					t.Error(err)
					return
				}
				for i := 0; i < size; i += 512 {
					d.Bytes[i] = byte(size)
				}
				if random.IntN(10) == 0 {
					d.Discard()
					continue
				}
				id := d.Object
				if err := d.Seal(uint64(size), ""); err != nil {
					t.Error(err)
					return
				}
				r.hold(id)
				mu.Lock()
				shared = append(shared, id)
				expect[id] = size
				pick := shared[random.IntN(len(shared))]
				mu.Unlock()
				if err := look(clients[random.IntN(3)], pick, expect, &mu); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				var old uint64
				if len(shared) > 8 {
					old, shared = shared[0], shared[1:]
				}
				mu.Unlock()
				if old != 0 {
					r.drop(old)
				}
			}
		})
	}
	busy.Wait()
	r.drop(shared...)
	r.until("all to be free", func(s *wire.StoreStatus) bool { return len(s.Objects) == 0 && s.Used == 0 && s.Spilled == 0 })
	if s := r.Status(); s.Pooled > s.Budget {
		t.Errorf("%+v", s)
	}
}

// look reads an object, unless it was dropped meanwhile.
func look(c *Client, id uint64, expect map[uint64]int, mu *sync.Mutex) error {
	views, err := c.Open(id)
	if err != nil {
		if spec.AsError(err).Code == spec.CodeNotFound {
			return nil
		}
		return err
	}
	defer views[0].Close()
	mu.Lock()
	size := expect[id]
	mu.Unlock()
	if len(views[0].Bytes) != size {
		return fmt.Errorf("object %x has %d bytes, not %d", id, len(views[0].Bytes), size)
	}
	for i := 0; i < size; i += 512 {
		if views[0].Bytes[i] != byte(size) {
			return fmt.Errorf("byte %d of object %x is %d, not %d", i, id, views[0].Bytes[i], byte(size))
		}
	}
	return nil
}

// The end of a store, or of a client, is told to whoever waits; what is open
// stays readable.
func TestEnds(t *testing.T) {
	r := newRig(t, nil)
	c, waiting := r.client(1), r.client(2)
	v := open(t, c, put(t, c, mib, 3))[0]
	d, err := c.Alloc(mib)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := waiting.Open(d.Object)
		ended <- err
	}()
	r.until("somebody to wait", func(*wire.StoreStatus) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.sealing[d.Object] != nil
	})
	r.Store.Close()
	wantError(t, <-ended, spec.CodeNodeLost, "the store of node 3")
	_, err = c.Alloc(1)
	wantError(t, err, spec.CodeNodeLost)
	if err := d.Seal(1, ""); err == nil {
		t.Error("sealed in a store that is gone")
	}
	if err := filled(v.Bytes, mib, 3); err != nil {
		t.Error(err)
	}
	v.Close()
	c.Close()
	if _, err := c.Open(v.Object); err == nil {
		t.Error("a closed client opens")
	}
}

func TestClosingAClientThatWaits(t *testing.T) {
	r := newRig(t, nil)
	c := r.client(1)
	d, err := c.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	waiting := r.client(2)
	ended := make(chan error, 1)
	go func() {
		_, err := waiting.Open(d.Object)
		ended <- err
	}()
	r.until("somebody to wait", func(*wire.StoreStatus) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.sealing[d.Object] != nil
	})
	waiting.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	r.until("it to leave", func(*wire.StoreStatus) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.conns) == 1
	})
	d.Discard()
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]uint64{
		"8GiB": 8 << 30, "512MiB": 512 << 20, "1.5G": 3 << 29, " 64 kb ": 64 << 10, "1048576": 1 << 20, "2TiB": 2 << 40, "0": 0, "7B": 7,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "lots", "-1", "1XB", "NaN", "inf", "9999999PiB", "GiB"} {
		if got, err := ParseBytes(text); err == nil || !strings.Contains(err.Error(), "8GiB") {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
}

func FuzzRequests(f *testing.F) {
	for _, verb := range []string{verbAlloc, verbOpen, verbSeal, verbClose, verbFree} {
		f.Add(verb, body(verb, map[string]any{"object": uint64(7), "size": 1 << 30, "what": "a batch"})[len(verb)+2:])
		f.Add(verb, body(verb, map[string]any{"objects": []any{[]any{uint64(7), 2}}, "other": 1})[len(verb)+2:])
		f.Add(verb, body(verb, map[string]any{"objects": []any{uint64(7), 8}})[len(verb)+2:])
	}
	f.Fuzz(func(t *testing.T, verb string, b []byte) {
		var m message
		if err := m.read(verb, b); err != nil {
			return
		}
		if len(m.what) > maxWhat+len("…") || len(m.objects) > len(b) || len(m.closed) > len(b) {
			t.Errorf("%d bytes say %+v", len(b), m)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	for _, a := range []answer{{object: 7, segment: 1, capacity: mib, fresh: true, sent: []uint64{1}}, {opened: []opened{{1, 2}}, stale: []uint64{3, 4}}, {}} {
		f.Add(a.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var a, again answer
		if a.read(b) != nil {
			return
		}
		if err := again.read(a.append(nil)); err != nil {
			t.Fatal(err)
		}
		if a.object != again.object || a.object == 0 && !slices.Equal(a.opened, again.opened) || !slices.Equal(a.sent, again.sent) || !slices.Equal(a.stale, again.stale) {
			t.Errorf("%+v became %+v", a, again)
		}
	})
}

func TestWhatIsCutShort(t *testing.T) {
	if got := short([]byte(strings.Repeat("é", 300))); len(got) > maxWhat+len("…") || strings.ContainsRune(got, '\ufffd') {
		t.Errorf("%q", got)
	}
}
