package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// hexBytes is bytes that stand as hexadecimal in JSON.
type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	b, err := hex.DecodeString(s)
	*h = b
	return err
}

// golden is the file that the Python tests write (python/tests/golden.py) and
// check against too.
type golden struct {
	Version int
	Frames  []struct {
		Name  string
		Kind  Kind
		Flags Flags
		ID    uint64
		Peer  uint32
		Ack   uint32
		Body  hexBytes   `json:"body_hex"`
		Bufs  []hexBytes `json:"bufs_hex"`
		Frame hexBytes   `json:"frame_hex"`
	}
	Values []struct {
		Name string
		Body hexBytes   `json:"body_hex"`
		Bufs []hexBytes `json:"bufs_hex"`
	}
	Malformed []struct {
		Name  string
		Hex   hexBytes
		Error string
	}
	Truncated []struct {
		Name string
		Hex  hexBytes
	}
}

func readGolden(t *testing.T) golden {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func unhex(bufs []hexBytes) []Buf {
	var out []Buf
	for _, b := range bufs {
		out = append(out, Buf{Data: b})
	}
	return out
}

// TestGoldenFrames: both languages make and read the same bytes.
func TestGoldenFrames(t *testing.T) {
	g := readGolden(t)
	if g.Version != Version {
		t.Fatalf("the vectors are of version %d, this is version %d", g.Version, Version)
	}
	for _, v := range g.Frames {
		h := Header{Kind: v.Kind, Flags: v.Flags, ID: v.ID, Peer: v.Peer, Ack: v.Ack}
		if got := AppendFrame(nil, h, v.Body, unhex(v.Bufs)); !bytes.Equal(got, v.Frame) {
			t.Errorf("%s: made %x, want %x", v.Name, got, []byte(v.Frame))
		}
		f, err := ParseFrame(v.Frame)
		if err != nil || f.Header != h || !bytes.Equal(f.Body, v.Body) || len(f.Bufs) != len(v.Bufs) {
			t.Errorf("%s: read as %+v, %v", v.Name, f, err)
			continue
		}
		for i := range f.Bufs {
			if !bytes.Equal(f.Bufs[i].Data, v.Bufs[i]) {
				t.Errorf("%s: buffer %d is %x", v.Name, i, f.Bufs[i].Data)
			}
		}
	}
}

// TestGoldenRefusals: what one side refuses, so does the other, in the same words.
func TestGoldenRefusals(t *testing.T) {
	g := readGolden(t)
	for _, v := range g.Malformed {
		if _, err := ParseFrame(v.Hex); err == nil || !strings.Contains(err.Error(), v.Error) {
			t.Errorf("%s: %v, want %q", v.Name, err, v.Error)
		}
	}
	for _, v := range g.Truncated {
		if _, err := ParseFrame(v.Hex); err == nil {
			t.Errorf("%s: was read", v.Name)
		}
	}
}

// TestGoldenValues: every value that Python sends is one value to the head, and
// comes through being moved between frames unchanged.
func TestGoldenValues(t *testing.T) {
	for _, v := range readGolden(t).Values {
		rest, err := Skip(v.Body)
		if err != nil || len(rest) != 0 {
			t.Errorf("%s: %d bytes are left, %v", v.Name, len(rest), err)
		}
		var moved Value
		if err := moved.List([]Value{{Raw: v.Body, Bufs: unhex(v.Bufs)}}); err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		if !bytes.Equal(moved.Raw[1:], v.Body) || len(moved.Bufs) != len(v.Bufs) {
			t.Errorf("%s: moved to %x with %d buffers", v.Name, moved.Raw[1:], len(moved.Bufs))
		}
	}
}
