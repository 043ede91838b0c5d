package batch

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const goldenFile = "testdata/handles.json"

// golden is a vector that binds Go and Python to one encoding: what a handle is,
// its bytes, and what operations make of it. Buffers are told apart by name; the
// results of operations have no buffers that they do not use.
type golden struct {
	Name    string         `json:"name"`
	Payload string         `json:"payload"` // in hex
	Buffers []string       `json:"buffers"`
	Refused string         `json:"refused,omitempty"` // why it is no handle
	Handle  *goldenHandle  `json:"handle,omitempty"`
	Makes   []goldenResult `json:"makes,omitempty"`
}

type goldenHandle struct {
	Rows  int          `json:"rows"`
	Parts []goldenPart `json:"parts"`
	Cut   *goldenCut   `json:"cut"`
	Metas []goldenMeta `json:"metas"`
}

type goldenPart struct {
	Columns []string      `json:"columns"`
	Pieces  []goldenPiece `json:"pieces"`
}

// goldenPiece has a range or rows.
type goldenPiece struct {
	Buf   int      `json:"buf"`
	Range []int    `json:"range,omitempty"`
	Rows  []uint32 `json:"rows,omitempty"`
}

type goldenCut struct {
	Weights  []float64 `json:"weights"`
	Groups   []uint32  `json:"groups"`
	Multiple int       `json:"multiple"`
}

type goldenMeta struct {
	Value string `json:"value"` // in hex
	Bufs  int    `json:"bufs"`
	// In hex, as JSON's numbers are not exact; where it is not 0.
	Origin string `json:"origin,omitempty"`
}

// goldenResult is an operation and what it gives.
type goldenResult struct {
	Slice   []int    `json:"slice,omitempty"`  // rows from, to
	Take    []uint32 `json:"take,omitempty"`   // rows
	Select  []string `json:"select,omitempty"` // columns
	Concat  []string `json:"concat,omitempty"` // the names of the vectors that follow it
	Payload string   `json:"payload"`
	Buffers []string `json:"buffers"`
}

var goldenHandles = []struct {
	name, text string
	makes      []goldenResult
}{
	{"one object", "ids,mask:x[0:8]", []goldenResult{
		{Slice: []int{2, 6}}, {Slice: []int{8, 8}}, {Take: []uint32{7, 0, 3}}, {Take: []uint32{2, 3, 4}},
		{Select: []string{"mask"}}, {Select: []string{"mask", "ids"}}, {Concat: []string{"one object"}}, {Concat: []string{"the same apart"}},
	}},
	{"the same apart", "mask:y[0:3] ids:x[8:11]", []goldenResult{
		{Concat: []string{"one object"}}, {Select: []string{"ids"}}, {Slice: []int{1, 2}},
	}},
	{"no columns, no meta", "", nil},
	{"meta only", "meta=step3", []goldenResult{{Concat: []string{"meta only", "meta with buffers"}}}},
	{"meta with buffers", "meta=grid@m+n meta=step3", nil},
	{"metrics", "v:x[0:2] meta=loss#1@m meta=loss#2", []goldenResult{
		{Concat: []string{"metrics"}}, {Concat: []string{"equal metrics"}}, {Slice: []int{0, 1}}, {Concat: []string{"metrics of another rank", "metrics"}},
	}},
	{"equal metrics", "v:x[2:4] meta=loss meta=loss#1@inline", []goldenResult{{Concat: []string{"metrics"}}}},
	{"metrics of another rank", "v:x[2:4] meta=loss#9223372036854775807@m meta=loss#128", nil},
	{"no rows", "reply:x[0:0] prompt:y[0:0] meta=step3", []goldenResult{{Concat: []string{"no rows"}}, {Slice: []int{0, 0}}}},
	{"several objects", "reply:a[0:3]+b[5:7]+c[0:20] prompt:d[1000:1025]", []goldenResult{
		{Slice: []int{3, 5}}, {Slice: []int{2, 20}}, {Take: []uint32{24, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 3, 1}}, {Select: []string{"prompt", "reply"}},
	}},
	{"lists", "reply:a[3,1,2,2]+b[9,8] meta=one@m", []goldenResult{
		{Slice: []int{1, 3}}, {Slice: []int{1, 5}}, {Take: []uint32{5, 5, 2, 1}}, {Concat: []string{"lists", "lists"}},
	}},
	{"runs", "reply:a[0:40]", []goldenResult{
		{Take: []uint32{0, 1, 2, 3, 4, 5, 6}}, {Take: []uint32{9, 0, 1, 2, 3, 4, 5, 6}}, {Take: []uint32{9, 0, 1, 2, 3, 4, 5, 6, 7}},
		{Take: []uint32{30, 31, 32, 33, 34, 35, 36, 37, 38, 5, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17, 18, 1}},
	}},
	{"numbers of every size", "v:x[127:128]+x[128:255]+x[255:256]+x[256:65535]+x[65536:4294967295]", nil},
	{"names of every kind", "a,ä,列,😀,sixteen_letters_,thirty_two_letters_and_then_some_:x[0:1]", []goldenResult{{Select: []string{"列"}}}},
	{"renamed", "id/x,y:a[0:4] n:b[2:6]", []goldenResult{
		{Select: []string{"n", "id"}}, {Slice: []int{1, 3}}, {Take: []uint32{3, 0}}, {Concat: []string{"renamed elsewhere", "renamed"}},
	}},
	{"renamed elsewhere", "y,id/x:c[0:4] n:b[6:10]", []goldenResult{{Concat: []string{"renamed"}}}},
	{"balanced", "v:x[0:5] w=900,1,0,44,7", []goldenResult{{Slice: []int{1, 4}}, {Take: []uint32{4, 0}}, {Concat: []string{"balanced"}}, {Concat: []string{"balanced in groups"}}}},
	{"balanced in groups", "v:y[0:4] w=3,1,4,1 g=7,7,0,4294967295", []goldenResult{{Slice: []int{2, 2}}}},
	{"in multiples", "v:y[0:4] m=4", []goldenResult{{Concat: []string{"in multiples"}}, {Concat: []string{"in multiples of groups"}}}},
	{"in multiples of groups", "v:z[0:4] g=1,1,2,2 m=2", nil},
}

var goldenRefused = []struct {
	why     string
	payload []byte
	bufs    int
}{
	{"nothing", nil, 0},
	{"no array", num(4), 0},
	{"too short", list(num(0), list(), []byte{0xc0}), 0},
	{"something after it", append(list(num(0), list(), []byte{0xc0}, list()), 0), 0},
	{"more parts than bytes", []byte{0x94, 0, 0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0, 0x90}, 0},
	{"rows that do not add up", list(num(2), list(list(list(name("a")), list(list(num(0), num(0), num(3))))), []byte{0xc0}, list()), 1},
	{"a piece that ends before it begins", list(num(0), list(list(list(name("a")), list(list(num(0), num(3), num(1)), list(num(0), num(1), num(3))))), []byte{0xc0}, list()), 1},
	{"a buffer that is not there", list(num(2), list(list(list(name("a")), list(list(num(1), num(0), num(2))))), []byte{0xc0}, list()), 1},
	{"rows in a buffer of a meta", list(num(2), list(list(list(name("a")), list(list(num(0), num(0), num(2))))), []byte{0xc0}, list(list(bin(), num(1)))), 1},
	{"half a number in a list", list(num(1), list(list(list(name("a")), list(list(num(0), bin(1, 0, 0, 0, 1))))), []byte{0xc0}, list()), 1},
	{"a column twice", list(num(0), list(list(list(name("a"), name("a")), list(list(num(0), num(0), num(0))))), []byte{0xc0}, list()), 1},
	{"a part without columns", list(num(0), list(list(list(), list(list(num(0), num(0), num(0))))), []byte{0xc0}, list()), 1},
	{"a part without pieces", list(num(0), list(list(list(name("a")), list())), []byte{0xc0}, list(list(bin(), num(0)))), 1},
	{"a weight too few", list(num(2), list(), list(bin(0, 0, 0, 0, 0, 0, 0, 0), []byte{0xc0}, num(0)), list()), 0},
	{"a group too many", list(num(0), list(), list([]byte{0xc0}, bin(0, 0, 0, 0), num(0)), list()), 0},
	{"more buffers than there are", list(num(0), list(), []byte{0xc0}, list(list(bin(), num(2)))), 1},
	{"a column twice, once renamed", list(num(0), list(list(list(name("a"), name("a\x00b")), list(list(num(0), num(0), num(0))))), []byte{0xc0}, list()), 1},
	{"a meta of no origin", list(num(0), list(), []byte{0xc0}, list(list(bin(), num(0), num(0)))), 0},
	{"a meta whose origin is no number", list(num(0), list(), []byte{0xc0}, list(list(bin(), num(0), bin(1)))), 0},
	{"a meta of four", list(num(0), list(), []byte{0xc0}, list(list(bin(), num(0), num(1), num(1)))), 0},
	{"a meta of one", list(num(0), list(), []byte{0xc0}, list(list(bin()), list(bin(), num(0)))), 0},
	{"a negative number of rows", list([]byte{0xff}, list(), []byte{0xc0}, list()), 0},
}

// vectors makes them all.
func vectors(t *testing.T) []golden {
	t.Helper()
	byName := map[string]named{}
	var out []golden
	for _, c := range goldenHandles {
		h := parseHandle(t, strings.Fields(c.text))
		byName[c.name] = h
		out = append(out, golden{Name: c.name, Payload: hexOf(&h), Buffers: list0(h.bufs), Handle: describe(&h.Handle)})
	}
	for i, c := range goldenHandles {
		for _, want := range c.makes {
			got := operate(t, byName, byName[c.name], want)
			want.Payload, want.Buffers = hexOf(&got), list0(got.bufs)
			out[i].Makes = append(out[i].Makes, want)
		}
	}
	for _, c := range goldenRefused {
		buffers := []string{}
		for i := range c.bufs {
			buffers = append(buffers, string(rune('a'+i)))
		}
		out = append(out, golden{Name: "refused: " + c.why, Payload: hex.EncodeToString(c.payload), Buffers: buffers, Refused: c.why})
	}
	return out
}

func operate(t *testing.T, byName map[string]named, of named, do goldenResult) named {
	t.Helper()
	var made named
	var err error
	switch {
	case do.Slice != nil:
		made = named{of.Slice(do.Slice[0], do.Slice[1]), of.bufs}
	case do.Take != nil:
		made = named{of.Take(do.Take), of.bufs}
	case do.Select != nil:
		made.bufs = of.bufs
		made.Handle, err = of.Select(do.Select...)
	case do.Concat != nil:
		handles, bufs := []Handle{of.Handle}, [][]string{of.bufs}
		for _, name := range do.Concat {
			handles, bufs = append(handles, byName[name].Handle), append(bufs, byName[name].bufs)
		}
		made, err = concatNamed(handles, bufs)
	}
	if err != nil {
		t.Fatal(err)
	}
	compact, kept := made.Compact()
	return named{compact, pick(made.bufs, kept)}
}

func hexOf(h *named) string { return hex.EncodeToString(h.Append(nil)) }

// list0 is never nil: an empty list in JSON.
func list0[T any](list []T) []T { return append([]T{}, list...) }

func describe(h *Handle) *goldenHandle {
	out := &goldenHandle{Rows: h.Rows, Parts: []goldenPart{}, Metas: []goldenMeta{}}
	for _, p := range h.Parts {
		part := goldenPart{Columns: p.Columns}
		for _, piece := range p.Pieces {
			g := goldenPiece{Buf: piece.Buf, Rows: piece.Rows}
			if piece.Rows == nil {
				g.Range = []int{piece.From, piece.To}
			}
			part.Pieces = append(part.Pieces, g)
		}
		out.Parts = append(out.Parts, part)
	}
	if c := h.Cut; c != nil {
		out.Cut = &goldenCut{c.Weights, c.Groups, c.Multiple}
	}
	for _, m := range h.Metas {
		out.Metas = append(out.Metas, goldenMeta{hex.EncodeToString(m.Value), m.Bufs, originOf(m)})
	}
	return out
}

func originOf(m Meta) string {
	if m.Origin == 0 {
		return ""
	}
	return strconv.FormatUint(m.Origin, 16)
}

func TestGolden(t *testing.T) {
	made := vectors(t)
	if *update {
		var out bytes.Buffer
		out.WriteString("[\n")
		for i, v := range made {
			line, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(line)
			if i < len(made)-1 {
				out.WriteString(",")
			}
			out.WriteString("\n")
		}
		out.WriteString("]\n")
		if err := os.WriteFile(goldenFile, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	var had []golden
	if err := json.Unmarshal(text, &had); err != nil {
		t.Fatal(err)
	}
	byName := map[string]named{}
	for _, v := range had {
		payload, err := hex.DecodeString(v.Payload)
		if err != nil {
			t.Fatal(err)
		}
		h, err := Parse(payload, len(v.Buffers))
		if v.Refused != "" {
			if err == nil {
				t.Errorf("%s was read as %v", v.Name, h)
			}
			continue
		}
		if err != nil || !bytes.Equal(h.Append(nil), payload) || !reflect.DeepEqual(describe(&h), v.Handle) {
			t.Errorf("%s: %v was read, described as %v: %v", v.Name, h, v.Handle, err)
		}
		byName[v.Name] = named{h, v.Buffers}
	}
	for _, v := range had {
		for _, do := range v.Makes {
			if got := operate(t, byName, byName[v.Name], do); hexOf(&got) != do.Payload || !slices.Equal(got.bufs, do.Buffers) {
				t.Errorf("%s: %+v gave %s with %v", v.Name, do, hexOf(&got), got.bufs)
			}
		}
	}
	if len(had) != len(made) {
		t.Errorf("%d vectors are written, %d are made: run with -update", len(had), len(made))
	}
}
