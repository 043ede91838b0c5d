package wire

import (
	"errors"
	"fmt"
	"testing"
)

// numberedFrames are frames as a connection would write them.
func numberedFrames(t *testing.T, sizes ...int) [][]byte {
	t.Helper()
	c := &Conn{}
	var frames [][]byte
	for i, size := range sizes {
		frame := AppendFrame(nil, Header{Kind: KindCall, ID: uint64(i), Peer: 7}, make([]byte, size), nil)
		c.numberLocked(frame)
		frames = append(frames, frame)
	}
	return frames
}

// Frames that come twice are read once, whatever their size and however far apart.
func TestRepeatedFramesAreDropped(t *testing.T) {
	large := readBuffer + 1
	frames := numberedFrames(t, 0, 100, large, 3, large, 0)
	for name, order := range map[string][]int{
		"none":          {0, 1, 2, 3, 4, 5},
		"each":          {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5},
		"three times":   {0, 0, 0, 1, 2, 2, 2, 3, 4, 5, 5, 5},
		"the ones back": {0, 1, 0, 2, 1, 3, 2, 4, 3, 5, 4},
		"all from one":  {0, 1, 2, 3, 0, 1, 2, 3, 4, 2, 5},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			b.SetLimit(MaxFrame)
			go func() {
				for _, i := range order {
					_, _ = a.NetConn().Write(frames[i])
				}
				_ = a.Close()
			}()
			for i := range frames {
				f, err := b.Read()
				if err != nil || f.ID != uint64(i) || f.Peer != 7 {
					t.Fatalf("frame %d of link %d, %v; want %d of 7", f.ID, f.Peer, err, i)
				}
			}
			if f, err := b.Read(); err == nil {
				t.Errorf("frame %d came once more", f.ID)
			}
		})
	}
}

// Numbers go round, and a reader follows.
func TestNumbersGoRound(t *testing.T) {
	a, b := pair(t)
	b.SetLimit(MaxFrame)
	const n = 3 * numbers
	go func() {
		for i := range n {
			a.Queue(Header{Kind: KindCall, ID: uint64(i)}, nil, nil, nil)
			if i%7 == 0 {
				a.mu.Lock() // as if something on the way had written the last one twice
				if at := len(a.out) - headerSize; at >= 0 {
					a.out = append(a.out, a.out[at:]...)
				}
				a.mu.Unlock()
			}
			a.Flush()
		}
	}()
	for i := range n {
		if f, err := b.Read(); err != nil || f.ID != uint64(i) {
			t.Fatalf("frame %d, %v; want %d", f.ID, err, i)
		}
	}
}

// A connection that lost a frame is cut: what comes behind is not read.
func TestMissingFramesEndAConnection(t *testing.T) {
	frames := numberedFrames(t, 0, 1, 2, 3)
	for want, order := range [][]int{1: {0, 2, 3}, 2: {0, 1, 3}} {
		if order == nil {
			continue
		}
		a, b := pair(t)
		for _, i := range order {
			_, _ = a.NetConn().Write(frames[i])
		}
		var err error
		read := 0
		for ; err == nil; read++ {
			_, err = b.Read()
		}
		if !errors.Is(err, ErrCut) || read-1 != want {
			t.Errorf("%v: read %d frames, then %v", order, read-1, err)
		}
	}
}

func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		number, had uint8
		want        place
	}{
		{1, 0, inTurn},
		{9, 0, inTurn}, // a reader that came late
		{0, 5, inTurn}, // not numbered
		{6, 5, inTurn},
		{1, 255, inTurn},
		{5, 5, repeated},
		{1, 5, repeated},
		{255, 1, repeated},
		{200, 20, repeated},
		{7, 5, missing},
		{2, 255, missing},
	} {
		if got := placeOf(c.number, c.had); got != c.want {
			t.Errorf("%d after %d: %v, want %v", c.number, c.had, got, c.want)
		}
	}
}

// A loop that looks for whole frames waits for the next where the last was only
// repeated.
func TestBufferedPassesRepeatsBy(t *testing.T) {
	for _, size := range []int{0, readBuffer} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			frames := numberedFrames(t, size, size)
			a, b := pair(t)
			b.SetLimit(MaxFrame)
			loop, err := NewLoop(nil)
			if err != nil {
				t.Fatal(err)
			}
			got, left := make(chan uint64, 10), make(chan error, 1)
			if !b.Attend(loop, func() {
				err := b.Fetch()
				for err == nil && b.Buffered() {
					var f Frame
					if f, err = b.Read(); err == nil {
						got <- f.ID
					}
				}
				if err != nil {
					b.Leave()
					left <- err
				}
			}) {
				t.Fatal("not in the loop")
			}
			for _, i := range []int{0, 0, 0} {
				_, _ = a.NetConn().Write(frames[i])
			}
			if id := <-got; id != 0 {
				t.Errorf("frame %d first", id)
			}
			_, _ = a.NetConn().Write(frames[1])
			if id := <-got; id != 1 {
				t.Errorf("frame %d next", id)
			}
			_ = a.Close()
			<-left
			_ = b.Close()
			loop.Close()
			if len(got) > 0 {
				t.Errorf("%d frames more", len(got))
			}
		})
	}
}
