package batch

import (
	"strings"

	"github.com/muster-rl/muster/spec"
)

// MaxRows is how many rows a batch or an object has at most: rows are named by
// 32 bits.
const MaxRows = 1 << 32

// Handle stands for a batch.
type Handle struct {
	Rows    int
	Objects int // how many buffers hold rows: numbers 0 to Objects-1
	Parts   []Part
	Cut     *Cut // nil: evenly
	Metas   []Meta
}

// Part is columns that lie side by side in the same objects. All parts of a
// handle have as many rows.
type Part struct {
	Columns []string // as Split has them
	Pieces  []Piece  // one at least: a part without rows keeps one for its types
}

// Piece is rows of one object.
type Piece struct {
	Buf      int
	From, To int      // rows From to (not included) To, where Rows is nil
	Rows     []uint32 // else these, in this order
}

// Len is the number of rows.
func (p *Piece) Len() int {
	if p.Rows != nil {
		return len(p.Rows)
	}
	return p.To - p.From
}

// Meta is what a batch carries beside its rows: an encoded value that numbers
// its own buffers from 0. A batch that was joined from several has several.
//
// Metrics are told apart by who made them, not by what they are: ranks that agree
// count each. Origin is a number that whoever made the metrics of a meta gave them,
// and that goes along for as long as they stay as they are; 0 where there are none.
type Meta struct {
	Value  []byte
	Bufs   int
	Origin uint64
}

// Bufs is the number of buffers of the handle: objects, then those of metas.
func (h *Handle) Bufs() int {
	n := h.Objects
	for i := range h.Metas {
		n += h.Metas[i].Bufs
	}
	return n
}

// MetaOnly says that the batch has neither columns nor rows. Rows whose columns
// were all left out are rows still.
func (h *Handle) MetaOnly() bool { return len(h.Parts) == 0 && h.Rows == 0 }

// Split is what a column is called, and what it is called in its objects. On the
// wire, and in a Part, that is one text: the name, and, where a column was renamed,
// NUL and its name in the objects.
func Split(column string) (name, stored string) {
	if name, stored, renamed := strings.Cut(column, "\x00"); renamed && stored != "" {
		return name, stored
	} else if renamed {
		return name, name
	}
	return column, column
}

// Columns are the names of all columns, in order.
func (h *Handle) Columns() []string {
	var names []string
	for i := range h.Parts {
		for _, column := range h.Parts[i].Columns {
			name, _ := Split(column)
			names = append(names, name)
		}
	}
	return names
}

// Select keeps the named columns, in the order in which they are named.
func (h *Handle) Select(names ...string) (Handle, error) {
	out := *h
	out.Parts = nil
	at := -1 // the part that the last column of out came from
	for i, name := range names {
		from, column := h.partOf(name)
		if from < 0 {
			return Handle{}, h.noColumn(name)
		}
		for _, before := range names[:i] {
			if before == name {
				return Handle{}, spec.Errorf(spec.CodeInvalid, "column '%s' was selected twice: a batch has a name once", name)
			}
		}
		if from != at {
			out.Parts = append(out.Parts, Part{Pieces: h.Parts[from].Pieces})
			at = from
		}
		last := &out.Parts[len(out.Parts)-1]
		last.Columns = append(last.Columns, column)
	}
	return out, nil
}

// partOf is the number of the part that has a column, or -1, and the column as it
// has it.
func (h *Handle) partOf(name string) (part int, column string) {
	for i := range h.Parts {
		for _, c := range h.Parts[i].Columns {
			if its, _ := Split(c); its == name {
				return i, c
			}
		}
	}
	return -1, ""
}

func (h *Handle) noColumn(name string) error {
	names := h.Columns()
	if len(names) == 0 {
		return spec.Errorf(spec.CodeNotFound, "there is no column '%s': the batch has no columns", name)
	}
	hint := ""
	if near := spec.NearestName(name, names); near != "" {
		hint = "; did you mean '" + near + "'?"
	}
	return spec.Errorf(spec.CodeNotFound, "there is no column '%s': the batch has %s%s", name, quoted(names), hint)
}

// quoted lists names for people, the first few of very many.
func quoted(names []string) string {
	const most = 20
	var b strings.Builder
	for i, name := range names {
		if i == most {
			b.WriteString(", …")
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("'" + name + "'")
	}
	return b.String()
}
