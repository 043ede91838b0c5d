package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"

	"github.com/tinylib/msgp/msgp"
	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// headerSize is a frame's, docs/wire.md.
const headerSize = 24

// Client is a process's connection to one store, with the segments that it has
// mapped. Its methods may be called concurrently; requests go one at a time.
type Client struct {
	where string
	conn  *net.UnixConn

	asking sync.Mutex // held from a request to its answer
	last   uint64
	in     []byte
	rights []byte

	mu       sync.Mutex // the rest, and what is written to conn
	out      []byte
	err      error // why the connection is of no more use
	segments map[uint64]*mapping
	views    map[uint64]*reading // by object
}

// reading is an object that this process has views of.
type reading struct {
	segment *mapping
	count   int
}

// Dial connects to the store of a node whose socket is in dir. Token and holder
// are what the head's welcome told.
func Dial(dir string, node int, token string, holder uint64) (*Client, error) {
	where := fmt.Sprintf("the store of node %d", node)
	wc, err := wire.Dial(filepath.Join(dir, fmt.Sprintf("agent-%d.sock", node)))
	if err != nil {
		return nil, spec.Errorf(spec.CodeNodeLost, "%s is out of reach: %v", where, err)
	}
	if _, err := wire.Join(wc, wire.Hello{Role: wire.RoleStore, Token: token, Holder: holder}); err != nil {
		_ = wc.Close()
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return &Client{
		where: where, conn: wc.NetConn().(*net.UnixConn),
		in: make([]byte, 4096), rights: make([]byte, unix.CmsgSpace(4*maxRights)),
		segments: map[uint64]*mapping{}, views: map[uint64]*reading{},
	}, nil
}

// Close ends the connection. Views that are still open stay readable until they
// are closed; drafts do not.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(fmt.Errorf("%s: %w", c.where, net.ErrClosed))
}

// failLocked ends the connection and unmaps what is not in use.
func (c *Client) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	_ = c.conn.Close()
	for id, m := range c.segments {
		delete(c.segments, id)
		m.abandon()
	}
}

// Draft is an object that is being written. Its Bytes lie in shared memory and
// must not be touched after Seal or Discard.
type Draft struct {
	Object uint64
	Bytes  []byte
	c      *Client
	m      *mapping
	fresh  bool
}

// Alloc makes room for an object of size bytes.
func (c *Client) Alloc(size uint64) (*Draft, error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	a, err := c.ask(verbAlloc, func(b []byte) []byte {
		b = msgp.AppendMapHeader(b, 1)
		b = msgp.AppendString(b, "size")
		return msgp.AppendUint64(b, size)
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.mappedLocked(a.segment)
	var shared []byte
	if err == nil {
		shared, err = m.shared()
	}
	if err == nil && size > uint64(len(shared)) {
		err = spec.Errorf(spec.CodeProtocol, "%s gave %d bytes for %d", c.where, len(shared), size)
	}
	if err != nil {
		_ = c.freeLocked(a.object)
		return nil, err
	}
	m.users++
	return &Draft{Object: a.object, Bytes: shared[:size:size], c: c, m: m, fresh: a.fresh}, nil
}

// Seal ends the writing: the object is its first size bytes, for ever. what
// tells people what it is.
func (d *Draft) Seal(size uint64, what string) error {
	return d.end(verbSeal, func(b []byte) []byte {
		b = msgp.AppendMapHeader(b, 3)
		b = msgp.AppendString(b, "object")
		b = msgp.AppendUint64(b, d.Object)
		b = msgp.AppendString(b, "size")
		b = msgp.AppendUint64(b, size)
		b = msgp.AppendString(b, "what")
		return msgp.AppendString(b, what)
	})
}

// Discard gives the object up.
func (d *Draft) Discard() {
	_ = d.end(verbFree, freeing(d.Object)) // with the connection, the object is gone too
}

func (d *Draft) end(verb string, body func(b []byte) []byte) error {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if d.m == nil {
		return spec.Errorf(spec.CodeInvalid, "object %x was sealed or discarded already", d.Object)
	}
	d.m.release()
	d.m, d.Bytes = nil, nil
	return d.c.noticeLocked(verb, body)
}

// Free gives up a sealed object that nobody was told of.
func (c *Client) Free(object uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.freeLocked(object)
}

func (c *Client) freeLocked(object uint64) error { return c.noticeLocked(verbFree, freeing(object)) }

func freeing(object uint64) func(b []byte) []byte {
	return func(b []byte) []byte {
		b = msgp.AppendMapHeader(b, 1)
		b = msgp.AppendString(b, "object")
		return msgp.AppendUint64(b, object)
	}
}

// alignment of the parts of an object.
const alignment = 64

// Put writes parts into one new object, each at a multiple of 64 bytes, seals
// it, and returns it with where each part begins.
func (c *Client) Put(what string, parts ...[]byte) (object uint64, offsets []uint64, err error) {
	offsets = make([]uint64, len(parts))
	size := uint64(0)
	for i, part := range parts {
		size = (size + alignment - 1) &^ (alignment - 1)
		offsets[i] = size
		size += uint64(len(part))
	}
	d, err := c.Alloc(size)
	if err != nil {
		return 0, nil, err
	}
	for i, part := range parts {
		if err := d.write(part, offsets[i]); err != nil {
			d.Discard()
			return 0, nil, err
		}
	}
	object = d.Object
	return object, offsets, d.Seal(size, what)
}

// write copies into the draft. Fresh pages are written by a system call: it
// saves the fault and the zeroes of each.
func (d *Draft) write(part []byte, at uint64) error {
	if !d.fresh {
		copy(d.Bytes[at:], part)
		return nil
	}
	for len(part) > 0 {
		n, err := unix.Pwrite(d.m.fd, part, int64(at)) //nolint:gosec // within a segment
		if err != nil && !errors.Is(err, unix.EINTR) {
			return spec.Errorf(spec.CodeLimit, "%s: cannot write: %v", d.c.where, err)
		}
		part, at = part[max(0, n):], at+uint64(max(0, n))
	}
	return nil
}

// View is an object's bytes. They can be written to: that stays in this process,
// and goes with its last view of the object.
type View struct {
	Object uint64
	Bytes  []byte

	c       *Client
	partial bool // not all bytes were there
}

// Open leases objects and maps them, all or none. It waits for those that are
// being written, or that come from other nodes.
func (c *Client) Open(objects ...uint64) ([]*View, error) { return c.open(objects, false) }

// OpenSome is Open for who needs a part of them: of those that lie on other nodes
// only the first chunk is there, and what Need was asked for.
func (c *Client) OpenSome(objects ...uint64) ([]*View, error) { return c.open(objects, true) }

func (c *Client) open(objects []uint64, some bool) ([]*View, error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	a, err := c.ask(verbOpen, func(b []byte) []byte {
		b = msgp.AppendMapHeader(b, 2)
		b = msgp.AppendString(b, "some")
		b = msgp.AppendBool(b, some)
		b = msgp.AppendString(b, "objects")
		return appendIDs(b, objects)
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(a.opened) != len(objects) {
		err := spec.Errorf(spec.CodeProtocol, "%s opened %d of %d objects", c.where, len(a.opened), len(objects))
		c.failLocked(err)
		return nil, err
	}
	views := make([]*View, len(objects))
	for i, o := range a.opened {
		m, err := c.mappedLocked(o.segment)
		var bytes []byte
		if err == nil {
			bytes, err = m.private()
		}
		if err == nil && o.size > uint64(len(bytes)) {
			err = spec.Errorf(spec.CodeProtocol, "%s says that object %x has %d bytes, its segment has %d", c.where, objects[i], o.size, len(bytes))
		}
		if err != nil {
			c.failLocked(err) // the leases go with the process, so they would never be given back
			return nil, err
		}
		r := c.views[objects[i]]
		if r == nil {
			r = &reading{segment: m}
			c.views[objects[i]] = r
			m.users++
		}
		r.count++
		views[i] = &View{Object: objects[i], Bytes: bytes[:o.size:o.size], c: c, partial: slices.Contains(a.partial, objects[i])}
	}
	return views, nil
}

// Need waits until bytes from to (not included) to of a view are there.
func (v *View) Need(from, to uint64) error {
	if !v.partial {
		return nil
	}
	v.c.asking.Lock()
	defer v.c.asking.Unlock()
	_, err := v.c.ask(verbNeed, func(b []byte) []byte {
		b = msgp.AppendMapHeader(b, 2)
		b = msgp.AppendString(b, "object")
		b = msgp.AppendUint64(b, v.Object)
		b = msgp.AppendString(b, "spans")
		b = msgp.AppendArrayHeader(b, 1)
		b = msgp.AppendArrayHeader(b, 2)
		b = msgp.AppendUint64(b, from)
		return msgp.AppendUint64(b, to)
	})
	return err
}

// Close gives the lease back; Bytes must not be used any more.
func (v *View) Close() {
	if v.c == nil {
		return
	}
	c := v.c
	v.c, v.Bytes = nil, nil
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.views[v.Object]
	if r.count--; r.count == 0 {
		delete(c.views, v.Object)
		r.segment.forget() // what was written here must not be seen in the next object
		r.segment.release()
	}
	_ = c.noticeLocked(verbClose, func(b []byte) []byte { // without a store there is no lease
		b = msgp.AppendMapHeader(b, 1)
		b = msgp.AppendString(b, "objects")
		b = msgp.AppendArrayHeader(b, 1)
		b = msgp.AppendArrayHeader(b, 2)
		b = msgp.AppendUint64(b, v.Object)
		return msgp.AppendInt(b, 1)
	})
}

func (c *Client) noticeLocked(verb string, body func(b []byte) []byte) error {
	return c.writeLocked(wire.Header{Kind: wire.KindNotice}, verb, body)
}

func (c *Client) writeLocked(h wire.Header, verb string, body func(b []byte) []byte) error {
	if c.err != nil {
		return c.err
	}
	b := append(c.out[:0], make([]byte, headerSize)...)
	b = msgp.AppendArrayHeader(b, 2)
	b = msgp.AppendString(b, verb)
	b = body(b)
	wire.AppendHeader(b[:0], h, len(b)-headerSize, nil)
	c.out = b
	if _, err := c.conn.Write(b); err != nil {
		c.failLocked(c.lost(err))
		return c.err
	}
	return nil
}

func (c *Client) lost(err error) error {
	return spec.Errorf(spec.CodeNodeLost, "the connection to %s ended: %v", c.where, err)
}

// ask sends a request, waits for its answer, and takes note of the segments
// that come and go with it.
func (c *Client) ask(verb string, body func(b []byte) []byte) (answer, error) {
	c.last++
	c.mu.Lock()
	err := c.writeLocked(wire.Header{Kind: wire.KindRequest, ID: c.last}, verb, body)
	c.mu.Unlock()
	if err != nil {
		return answer{}, err
	}
	f, fds, err := c.receive()
	var a answer
	if err == nil && f.Flags&wire.FlagError == 0 {
		err = a.read(f.Body)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && (f.Kind != wire.KindResponse || f.ID != c.last || len(a.sent) != len(fds)) {
		err = spec.Errorf(spec.CodeProtocol, "%s answered with a frame of kind %d and %d descriptors", c.where, f.Kind, len(fds))
		if f.Kind == wire.KindClose {
			err = wire.ReadError(f.Body)
		}
	}
	if err == nil && c.err != nil {
		err = c.err
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		c.failLocked(err)
		return a, c.err
	}
	if f.Flags&wire.FlagError != 0 {
		return a, wire.ReadError(f.Body)
	}
	for _, id := range a.stale {
		if m := c.segments[id]; m != nil {
			delete(c.segments, id)
			m.abandon()
		}
	}
	for i, id := range a.sent {
		c.segments[id] = &mapping{fd: fds[i]}
	}
	return a, nil
}

func (c *Client) mappedLocked(id uint64) (*mapping, error) {
	m := c.segments[id]
	if m == nil {
		return nil, spec.Errorf(spec.CodeProtocol, "%s names segment %d and never sent it", c.where, id)
	}
	return m, nil
}

// receive reads one frame and the descriptors that come with it.
func (c *Client) receive() (f wire.Frame, fds []int, err error) {
	have, want := 0, headerSize
	for have < want {
		n, oobn, flags, _, err := c.conn.ReadMsgUnix(c.in[have:want], c.rights)
		got, badRights := readRights(c.rights[:oobn])
		fds = append(fds, got...)
		switch {
		case err != nil:
			return f, fds, c.lost(err)
		case n == 0:
			return f, fds, c.lost(errors.New("it was closed"))
		case badRights != nil || flags&unix.MSG_CTRUNC != 0:
			return f, fds, spec.Errorf(spec.CodeLimit, "descriptors from %s were lost: the limit of open files of this process is reached: raise it (ulimit -n 65536)", c.where)
		}
		have += n
		if have == headerSize && want == headerSize {
			want += int(binary.LittleEndian.Uint32(c.in))
			if want > maxAnswer {
				return f, fds, spec.Errorf(spec.CodeProtocol, "%s answers with %d bytes", c.where, want)
			}
			if want > len(c.in) {
				c.in = append(c.in, make([]byte, want-len(c.in))...)
			}
		}
	}
	f, err = wire.ParseFrame(c.in[:want])
	return f, fds, err
}

// maxAnswer bounds an answer: two numbers for each object of the largest request.
const maxAnswer = 4 * maxRequest

func readRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	var fds []int
	for i := range messages {
		some, bad := unix.ParseUnixRights(&messages[i])
		if bad != nil {
			err = bad
		}
		fds = append(fds, some...)
	}
	return fds, err
}
