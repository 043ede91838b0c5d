package batch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestScripts runs testdata/*.txt: each line says what is done, the indented
// lines below it what that gives. A handle has a name and is made by
//
//	let NAME COLUMN,…:PIECE+… [w=WEIGHT,…] [g=GROUP,…] [m=MULTIPLE] [meta=TEXT[#ORIGIN][@BUFFER+…]]
//	slice NAME OF LO HI · take NAME OF ROW,… · blocks NAME OF SIZE BLOCK,…
//	select NAME OF COLUMN… · empty NAME OF · concat NAME OF…
//
// A column that was renamed is NAME/STORED. A piece is an object and its rows: x[0:8] or x[3,1,2]. Objects that begin with
// "inline" are bytes, which are never the same as others. Then there are
//
//	shards OF N: what each shard has, and what it weighs
//	restore OF N LEN…: how results of these lengths go back
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := script{}
			var out strings.Builder
			for line := range strings.Lines(string(text)) {
				line = strings.TrimRight(line, "\n")
				if strings.HasPrefix(line, "  ") {
					continue // expected output, made anew below
				}
				fmt.Fprintln(&out, line)
				if line != "" && !strings.HasPrefix(line, "#") {
					for got := range strings.Lines(s.run(t, strings.Fields(line))) {
						out.WriteString("  " + got)
					}
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if out.String() != string(text) {
				t.Errorf("%s differs; run with -update to see how:\n%s", file, out.String())
			}
		})
	}
}

// named is a handle and what its buffers are.
type named struct {
	Handle
	bufs []string
}

type script map[string]named

func (s script) run(t *testing.T, f []string) string {
	t.Helper()
	var made named
	var err error
	switch of := s[f[min(2, len(f)-1)]]; f[0] {
	case "let":
		made = parseHandle(t, f[2:])
	case "slice":
		made = named{of.Slice(atoi(t, f[3]), atoi(t, f[4])), of.bufs}
	case "take":
		made = named{of.Take(list32(t, f[3])), of.bufs}
	case "blocks":
		made = named{of.TakeBlocks(list32(t, f[4]), atoi(t, f[3])), of.bufs}
	case "select":
		made.bufs = of.bufs
		made.Handle, err = of.Select(f[3:]...)
	case "empty":
		made = named{of.Empty(), of.bufs}
	case "concat":
		var handles []Handle
		var bufs [][]string
		for _, name := range f[2:] {
			handles, bufs = append(handles, s[name].Handle), append(bufs, s[name].bufs)
		}
		made, err = concatNamed(handles, bufs)
	case "shards", "restore":
		return s.cut(t, f)
	default:
		t.Fatalf("unknown command %q", f)
	}
	if err != nil {
		e := spec.AsError(err)
		return fmt.Sprintf("error %s: %s\n", e.Code, e.Message)
	}
	compact, kept := made.Compact()
	made = named{compact, pick(made.bufs, kept)}
	s[f[1]] = made
	return show(&made)
}

// concatNamed joins handles whose buffers are the same where their names are.
func concatNamed(handles []Handle, bufs [][]string) (named, error) {
	h, sources, err := Concat(handles, func(handle, buf int) string {
		if name := bufs[handle][buf]; !strings.HasPrefix(name, "inline") {
			return name
		}
		return ""
	})
	return named{h, sourcesOf(bufs, sources)}, err
}

func (s script) cut(t *testing.T, f []string) string {
	t.Helper()
	of, n := s[f[1]], atoi(t, f[2])
	shards, err := of.Cut.Shards(of.Rows, n)
	if err != nil {
		e := spec.AsError(err)
		return fmt.Sprintf("error %s: %s\n", e.Code, e.Message)
	}
	if f[0] == "restore" {
		var lens []int
		for _, text := range f[3:] {
			lens = append(lens, atoi(t, text))
		}
		perm, m := Restore(shards.Lists, lens)
		if perm == nil {
			return "as they come\n"
		}
		return fmt.Sprintf("blocks of %d: %v\n", m, perm)
	}
	var out strings.Builder
	for i, shard := range written(shards) {
		var h Handle
		if shards.Lists != nil {
			h = of.Take(shards.Lists[i])
		} else {
			h = of.Slice(shards.Ranges[i].From, shards.Ranges[i].To)
		}
		weight := "" // without weights, the rows say it
		if of.Cut != nil && of.Cut.Weights != nil {
			weight = fmt.Sprintf(" of weight %v", weightsOf(Shards{Lists: [][]uint32{shard}}, of.Cut.Weights)[0])
		}
		fmt.Fprintf(&out, "%d: %d rows%s:", i, len(shard), weight)
		for _, p := range h.Parts {
			out.WriteString(" " + pieces(p.Pieces, of.bufs))
		}
		out.WriteString("\n")
	}
	return out.String()
}

func show(h *named) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d rows in %s\n", h.Rows, strings.Join(h.bufs, " "))
	for _, p := range h.Parts {
		names := strings.ReplaceAll(strings.Join(p.Columns, ","), "\x00", "/")
		fmt.Fprintf(&out, "%s: %s\n", names, pieces(p.Pieces, h.bufs))
	}
	if c := h.Cut; c != nil {
		fmt.Fprintf(&out, "weights %v groups %v multiple %d\n", c.Weights, c.Groups, c.Multiple)
	}
	for _, m := range h.Metas {
		origin := ""
		if m.Origin != 0 {
			origin = fmt.Sprintf(" of origin %d", m.Origin)
		}
		fmt.Fprintf(&out, "meta %s%s\n", m.Value, origin)
	}
	return out.String()
}

func pieces(pieces []Piece, bufs []string) string {
	var words []string
	for _, p := range pieces {
		rows := fmt.Sprintf("[%d:%d]", p.From, p.To)
		if p.Rows != nil {
			rows = strings.ReplaceAll(fmt.Sprint(p.Rows), " ", ",")
		}
		words = append(words, bufs[p.Buf]+rows)
	}
	return strings.Join(words, "+")
}

func parseHandle(t *testing.T, fields []string) named {
	t.Helper()
	var h named
	var c Cut
	var metas []string // what lies in the buffers of metas
	number := map[string]int{}
	for _, field := range fields {
		if what, text, ok := strings.Cut(field, "="); ok {
			switch what {
			case "w":
				for _, w := range list32(t, text) {
					c.Weights = append(c.Weights, float64(w))
				}
			case "g":
				c.Groups = list32(t, text)
			case "m":
				c.Multiple = atoi(t, text)
			case "meta":
				value, names, has := strings.Cut(text, "@")
				value, origin, of := strings.Cut(value, "#")
				m := Meta{Value: []byte(value)}
				if of {
					m.Origin = uint64(atoi(t, origin))
				}
				if has {
					metas = append(metas, strings.Split(names, "+")...)
					m.Bufs = 1 + strings.Count(names, "+")
				}
				h.Metas = append(h.Metas, m)
			}
			continue
		}
		names, text, _ := strings.Cut(field, ":")
		part := Part{Columns: strings.Split(strings.ReplaceAll(names, "/", "\x00"), ",")}
		h.Rows = 0
		for word := range strings.SplitSeq(text, "+") {
			object, rows, _ := strings.Cut(strings.TrimSuffix(word, "]"), "[")
			buf, known := number[object]
			if !known {
				buf = len(h.bufs)
				number[object] = buf
				h.bufs = append(h.bufs, object)
			}
			p := Piece{Buf: buf}
			if from, to, ok := strings.Cut(rows, ":"); ok {
				p.From, p.To = atoi(t, from), atoi(t, to)
			} else {
				p.Rows = list32(t, rows)
			}
			h.Rows += p.Len()
			part.Pieces = append(part.Pieces, p)
		}
		h.Parts = append(h.Parts, part)
	}
	h.Objects = len(h.bufs)
	h.bufs = append(h.bufs, metas...)
	if c.Weights != nil || c.Groups != nil || c.Multiple > 0 {
		h.Cut = &c
	}
	return h
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func list32(t *testing.T, text string) []uint32 {
	t.Helper()
	var out []uint32
	for word := range strings.SplitSeq(text, ",") {
		out = append(out, uint32(atoi(t, word)))
	}
	return out
}
