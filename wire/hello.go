package wire

import (
	"crypto/subtle"
	"fmt"
	"net"
	"os"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
)

// Release is the version of Muster, set by the linker for releases.
var Release = "0.1.0"

// Dial connects to a unix socket.
func Dial(path string) (*Conn, error) {
	nc, err := net.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot reach %s: %w", path, err)
	}
	return NewConn(nc), nil
}

// Join says hello on a dialled connection and waits for the welcome.
func Join(c *Conn, h Hello) (Welcome, error) {
	h.Magic, h.Version, h.Release, h.Pid = "muster", Version, Release, os.Getpid()
	body, err := h.MarshalMsg(nil)
	if err != nil {
		return Welcome{}, err
	}
	c.SetLimit(HelloLimit)
	c.Send(Header{Kind: KindHello}, body, nil)
	f, err := c.Read()
	if err != nil {
		return Welcome{}, fmt.Errorf("no answer to hello: %w", err)
	}
	if f.Kind != KindWelcome {
		return Welcome{}, spec.Errorf(spec.CodeProtocol, "expected a welcome, got a frame of kind %d", f.Kind)
	}
	if f.Flags&FlagError != 0 {
		return Welcome{}, ReadError(f.Body)
	}
	var w Welcome
	if _, err := w.UnmarshalMsg(f.Body); err != nil {
		return Welcome{}, spec.Errorf(spec.CodeProtocol, "a welcome that cannot be read: %v", err)
	}
	c.SetLimit(MaxFrame)
	return w, nil
}

// ReadHello reads the first frame of a connection and checks all but the token.
func ReadHello(c *Conn) (Hello, error) {
	c.SetLimit(HelloLimit)
	f, err := c.Read()
	if err != nil {
		return Hello{}, err
	}
	if f.Kind != KindHello {
		return Hello{}, spec.Errorf(spec.CodeProtocol, "expected hello, got a frame of kind %d", f.Kind)
	}
	return ParseHello(f.Body)
}

// ParseHello reads the body of a hello (or of an Open).
func ParseHello(body []byte) (Hello, error) {
	var h Hello
	if _, err := h.UnmarshalMsg(body); err != nil {
		return h, spec.Errorf(spec.CodeProtocol, "a hello that cannot be read: %v", err)
	}
	if h.Magic != "muster" {
		return h, spec.Errorf(spec.CodeProtocol, "the other end does not speak Muster's protocol")
	}
	if h.Version != Version {
		return h, spec.Errorf(spec.CodeProtocol, "the other end (release %s) speaks version %d of the protocol, this one (release %s) version %d: install the same release on both sides",
			h.Release, h.Version, Release, Version)
	}
	return h, nil
}

// Accept welcomes the other end and lifts the limit of frames.
func Accept(c *Conn, w Welcome) {
	c.SetLimit(MaxFrame)
	h, body := w.Frame()
	c.Send(h, body, nil)
}

// Frame is the welcome as it is sent.
func (w Welcome) Frame() (Header, []byte) {
	w.Version, w.Release = Version, Release
	body, err := w.MarshalMsg(nil)
	if err != nil { // no field of a Welcome can fail to encode
		panic(err)
	}
	return Header{Kind: KindWelcome}, body
}

// Refuse tells the other end why it is not welcome, and closes.
func Refuse(c *Conn, e *spec.Error) {
	c.Send(Header{Kind: KindWelcome, Flags: FlagError}, AppendError(nil, e), nil)
	_ = c.CloseWhenFlushed()
}

// SameToken compares without telling how much was right.
func SameToken(a, b string) bool {
	return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// AppendError appends an error as its map.
func AppendError(dst []byte, e *spec.Error) []byte {
	out, err := e.MarshalMsg(dst)
	if err != nil { // no field of an Error can fail to encode
		panic(err)
	}
	return out
}

// ReadError reads an error's map; one that cannot be read is an error too.
func ReadError(body []byte) *spec.Error {
	e := &spec.Error{Rank: -1}
	if _, err := e.UnmarshalMsg(body); err != nil {
		return spec.Errorf(spec.CodeProtocol, "an error that cannot be read: %v", err)
	}
	return e
}

// AppendVerb appends the body of a Request or Notice.
func AppendVerb(dst []byte, verb string, m msgp.Marshaler) ([]byte, error) {
	dst = msgp.AppendArrayHeader(dst, 2)
	dst = msgp.AppendString(dst, verb)
	return m.MarshalMsg(dst)
}

// ReadVerb splits the body of a Request or Notice.
func ReadVerb(body []byte) (verb string, rest []byte, err error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(body)
	if err == nil && n != 2 {
		err = fmt.Errorf("%d parts instead of 2", n)
	}
	if err == nil {
		verb, rest, err = msgp.ReadStringBytes(rest)
	}
	if err != nil {
		return "", nil, spec.Errorf(spec.CodeProtocol, "a request that cannot be read: %v", err)
	}
	return verb, rest, nil
}

// Notify queues a Notice and flushes.
func Notify(c *Conn, verb string, m msgp.Marshaler) error {
	body, err := AppendVerb(nil, verb, m)
	if err != nil {
		return err
	}
	c.Send(Header{Kind: KindNotice}, body, nil)
	return nil
}
