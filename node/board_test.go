package node

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/node/course"
)

// book writes down what a board tells.
type book struct {
	mu     sync.Mutex
	lines  []string
	refuse error
	news   chan string
}

func (b *book) note(text string) {
	b.mu.Lock()
	b.lines = append(b.lines, text)
	b.mu.Unlock()
	select {
	case b.news <- text:
	default:
	}
}

func (b *book) hello(h hello) error {
	b.note("hello " + h.Host)
	return b.refuse
}
func (b *book) heard(_ hello, r report) { b.note("heard " + string(r.State)) }
func (b *book) cut(h hello)             { b.note("cut " + h.Host) }

func newBook() *book { return &book{news: make(chan string, 1000)} }

const testBound = 20 * time.Second

func await[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(testBound):
		t.Fatalf("waited for %s in vain", what)
		panic("unreachable")
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// looking is a watcher that runs, and what comes of its looks.
type looking struct {
	*watcher
	notices chan course.Notice
	misses  chan *miss
}

func look(t *testing.T, address, token string) looking {
	t.Helper()
	l := looking{notices: make(chan course.Notice, 1000), misses: make(chan *miss, 1000)}
	l.watcher = &watcher{
		address: address, token: token, hello: hello{Rank: 1, World: 2, ID: "x", Host: "there"}, news: make(chan struct{}, 1),
		report: report{State: course.Seeking},
		looked: func(n course.Notice, _ net.Conn) { l.notices <- n },
		missed: func(m *miss) { l.misses <- m },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { l.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); await(t, done, "the watcher's end") })
	return l
}

func TestABoardTellsAndHears(t *testing.T) {
	listener, told := listen(t), newBook()
	b := newBoard(listener, "secret", course.Notice{Leader: "L", Phase: course.Starting}, told)
	defer b.close()
	l := look(t, listener.Addr().String(), "secret")
	if n := await(t, l.notices, "a notice"); n.Leader != "L" || n.Phase != course.Starting {
		t.Errorf("got %+v", n)
	}
	b.post(course.Notice{Leader: "L", Phase: course.Ended, Code: 3, Reason: "why"})
	for {
		if n := await(t, l.notices, "the end"); n.Phase == course.Ended && n.Code == 3 && n.Reason == "why" {
			break
		}
	}
	l.tell(report{State: course.Left})
	for await(t, told.news, "left") != "heard left" {
	}
	b.close()
	for await(t, told.news, "the cut") != "cut there" {
	}
	for await(t, l.misses, "a refusal").how != course.NoListener {
	}
}

// serveOnce plays something that is no leader of ours.
func serveOnce(t *testing.T, play func(net.Conn)) string {
	t.Helper()
	listener := listen(t)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			play(c)
			_ = c.Close()
		}
	}()
	return listener.Addr().String()
}

func TestLooksThatFail(t *testing.T) {
	refusing := newBook()
	refusing.refuse = errors.New("rank 1 is already here")
	ours := func(book *book) string {
		listener := listen(t)
		b := newBoard(listener, "secret", course.Notice{}, book)
		t.Cleanup(b.close)
		return listener.Addr().String()
	}
	nobody := listen(t)
	address := nobody.Addr().String()
	nobody.Close()
	for name, c := range map[string]struct {
		address string
		how     course.Miss
		why     string
	}{
		"another token":   {ours(newBook()), course.BadToken, "the token is not the leader's"},
		"not welcome":     {ours(refusing), course.NotWelcome, "rank 1 is already here"},
		"nobody there":    {address, course.NoListener, "connection refused"},
		"no such name":    {"no-such-host.invalid:1", course.NoName, "its name cannot be looked up: "},
		"a web server":    {serveOnce(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\n") }), course.Unspeakable, "something else listens there: "},
		"another release": {serveOnce(t, func(c net.Conn) { _, _ = io.WriteString(c, `{"muster":"node 9","nonce":"x"}`+"\n") }), course.Unspeakable, "what listens there is not muster node"},
		"a closed door":   {serveOnce(t, func(net.Conn) {}), course.NoAnswer, "the connection ended"},
		"an impostor": {serveOnce(t, func(c net.Conn) {
			l := newLine(c)
			_ = l.send(greeting{boardName, newNonce()})
			var h hello
			_ = l.receive(&h, testBound)
			_ = l.send(welcome{Proof: strings.Repeat("0", 64)})
		}), course.BadToken, "the leader does not know the token"},
	} {
		t.Run(name, func(t *testing.T) {
			token := "secret"
			if name == "another token" {
				token = "another"
			}
			m := await(t, look(t, c.address, token).misses, "a miss")
			if m.how != c.how || !strings.HasPrefix(m.why, c.why) {
				t.Errorf("got %d: %s", m.how, m.why)
			}
		})
	}
}

// Whatever a stranger says, it is neither welcomed nor heard.
func FuzzStrangers(f *testing.F) {
	f.Add([]byte("{}\n{\"state\":\"joined\"}\n"))
	f.Add([]byte(`{"nonce":"x","proof":"y","rank":1,"world":2,"id":"a","host":"b"}` + "\n"))
	f.Add([]byte(strings.Repeat("x", 2*maxLine)))
	f.Add([]byte("null\nnull\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		told := newBook()
		b := &board{token: "secret", audience: told, guests: make(chan struct{}, 1), changed: make(chan struct{}), conns: map[net.Conn]bool{}}
		b.guests <- struct{}{}
		ours, theirs := net.Pipe()
		go func() {
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			_, _ = theirs.Write(said)
			_ = theirs.Close()
		}()
		b.serve(newLine(ours))
		_ = ours.Close()
		if len(told.lines) > 0 {
			t.Fatalf("%q was taken for a replica: %v", said, told.lines)
		}
	})
}
