package store

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-rl/muster/wire"
)

const (
	// chunkWait is how long another store waits here for a chunk that is on its
	// way; it may then ask again.
	chunkWait = 5 * time.Second
	// sendBound is how long one chunk may take to be sent.
	sendBound = 5 * time.Minute
)

// Handler serves chunks of objects, and of copies of objects, to the stores of
// other nodes. Connections are the caller's: who is at their other end is proved
// by a token, and by what TLS is set up to ask for.
//
//	GET /objects/<number in hex>
//	Authorization: Bearer <token>
//	Range: bytes=<a multiple of the chunk's size>-<the last of that chunk>
func (s *Store) Handler(token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /objects/{id}", func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || !wire.SameToken(given, token) {
			http.Error(w, "the token is not that of the stores of this session", http.StatusUnauthorized)
			return
		}
		id, err := strconv.ParseUint(r.PathValue("id"), 16, 64)
		chunk, okay := chunkOf(r.Header.Get("Range"))
		if err != nil || !okay {
			http.Error(w, fmt.Sprintf("object %q, range %q: expected a number in hex, and a chunk of %d bytes", r.PathValue("id"), r.Header.Get("Range"), ChunkSize), http.StatusBadRequest)
			return
		}
		s.serveChunk(w, r, id, chunk)
	})
	return mux
}

// chunkOf reads a Range.
func chunkOf(text string) (uint32, bool) {
	text, ok := strings.CutPrefix(text, "bytes=")
	first, last, both := strings.Cut(text, "-")
	from, err := strconv.ParseUint(first, 10, 54)
	to, bad := strconv.ParseUint(last, 10, 54)
	if !ok || !both || err != nil || bad != nil || from%ChunkSize != 0 || to != from+ChunkSize-1 {
		return 0, false
	}
	return uint32(from / ChunkSize), true //nolint:gosec // of 54 bits, 22 are within a chunk
}

// errAbsent is an answer of its own: the other store asks the head again.
var errAbsent = errors.New("nothing of this is here, or on its way here")

func (s *Store) serveChunk(w http.ResponseWriter, r *http.Request, id uint64, chunk uint32) {
	ctx, cancel := context.WithTimeout(r.Context(), chunkWait)
	o, err := s.waitForChunk(ctx, id, chunk)
	cancel()
	switch {
	case errors.Is(err, errAbsent):
		http.Error(w, fmt.Sprintf("%s, chunk %d of object %x: %v", s.opts.Name, chunk, id, err), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, fmt.Sprintf("%s, chunk %d of object %x: %v", s.opts.Name, chunk, id, err), http.StatusServiceUnavailable)
		return
	}
	defer s.unhold([]*object{o})
	if err := s.sendChunk(w, gatheringOf(r), o, chunk); err != nil {
		// What is sent already cannot be taken back; that it ends too early is
		// noticed at the other end.
		panic(http.ErrAbortHandler)
	}
}

// waitForChunk is the object of a chunk that is here, with a view of the store
// itself. It waits for one that is on its way.
func (s *Store) waitForChunk(ctx context.Context, id uint64, chunk uint32) (*object, error) {
	for {
		s.mu.Lock()
		var wait <-chan struct{}
		switch o := s.ledger.objects[id]; {
		case s.closed:
			s.mu.Unlock()
			return nil, errClosed(s.opts.Name)
		case o == nil && s.beginning[id] != nil:
			wait = s.beginning[id].done
		case o == nil, o.state == broken, o.state != writing && chunk >= chunksOf(o.size):
			s.mu.Unlock()
			return nil, errAbsent
		case o.state == writing:
			if wait = s.sealing[id]; wait == nil {
				ready := make(chan struct{})
				s.sealing[id] = ready
				wait = ready
			}
		case o.copy == nil || o.copy.here[chunk]:
			s.holdLocked(o)
			s.mu.Unlock()
			return o, nil
		case o.copy.coming[chunk] == nil:
			s.mu.Unlock()
			return nil, errAbsent
		default:
			wait = o.copy.changed
		}
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("it is on its way, and not here after %v", chunkWait)
		}
	}
}

// sendChunk sends a chunk that is here. Without TLS the kernel does, from the
// segment's own pages.
func (s *Store) sendChunk(w http.ResponseWriter, g *gathering, o *object, chunk uint32) error {
	s.mu.Lock()
	mem, err := mapped(o.segment)
	fd := o.segment.fd
	sum, known := o.sums[chunk]
	first := !known && err == nil && o.segment.firstUse(chunk)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	at := bytesOf(chunk, o.size)
	bytes := mem[at.from:at.to]
	if !known {
		if first {
			touch(bytes, false)
		}
		sum = crc32.Checksum(bytes, sumTable)
		s.mu.Lock()
		if o.sums == nil {
			o.sums = map[uint32]uint32{}
		}
		o.sums[chunk] = sum
		s.mu.Unlock()
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.Itoa(len(bytes)))
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at.from, at.to, o.size))
	h.Set(sizeHeader, strconv.FormatUint(o.size, 10))
	h.Set(sumHeader, fmt.Sprintf("%08x", sum))
	if chunk == 0 {
		h.Set(whatHeader, url.QueryEscape(o.what))
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(sendBound))
	w.WriteHeader(http.StatusPartialContent)
	if len(bytes) == 0 {
		return nil
	}
	file := s.ownFile(fd, at.from)
	if file == nil {
		g.begin()
		if _, err = w.Write(bytes); err == nil {
			err = control.Flush()
		}
		return errors.Join(err, g.end())
	}
	defer file.Close()
	_, err = io.CopyN(w, file, int64(len(bytes)))
	return err
}

// ownFile is a segment with a place of its own to read on from: others have the
// descriptor, too. It is nil where the bytes have to be written by hand: with
// TLS, or where there is no /proc.
func (s *Store) ownFile(fd int, at uint64) *os.File {
	if s.peering == nil || s.peering.TLS != nil {
		return nil
	}
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil
	}
	if _, err := file.Seek(int64(at), io.SeekStart); err != nil { //nolint:gosec // within a segment
		_ = file.Close()
		return nil
	}
	return file
}
