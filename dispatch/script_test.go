package dispatch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/spec"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestScripts runs testdata/*.txt. A script is blocks, with a blank line
// between: one line that says what is called, a line of dashes, and then who
// gets what and what comes back.
//
//	MODE DPxTPxPPxCP [setting=…] [argument…]
//
// Arguments are int, list(n), tuple(n), batch(n), perrank(n), broadcast(n), and
// meta, a batch without columns, each possibly after a keyword and a colon. A
// batch may say how it is cut, by weights, groups and a multiple:
// batch(4;w=7,1,1,1;g=0,0,1,1;m=2). Settings are execute=RANK_ZERO, ranks=2,0,
// layout=dp-first|backward and returns=value|tuple|mixed|twice|fewer. Each worker
// returns a list of the rows of its first argument, marked with its rank (mixed:
// only even ranks do; twice: each row twice; fewer: all but the first).
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			had, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for i, block := range strings.Split(strings.TrimSpace(string(had)), "\n\n") {
				if i > 0 {
					got.WriteString("\n")
				}
				call := ""
				for line := range strings.Lines(block) {
					if line = strings.TrimSpace(line); line == "----" {
						break
					}
					got.WriteString(line + "\n")
					if !strings.HasPrefix(line, "#") {
						call = line
					}
				}
				if call != "" {
					got.WriteString("----\n" + runScript(t, call))
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got.String() != string(had) {
				t.Errorf("%s has changed (go test ./dispatch -update rewrites it):\n%s", file, firstDifference(string(had), got.String()))
			}
		})
	}
}

func firstDifference(had, got string) string {
	a, b := strings.Split(had, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d was %q, is %q", i+1, a[i], b[i])
		}
	}
	return "one is longer"
}

// runScript plans one call and plays it through.
func runScript(t *testing.T, call string) string {
	t.Helper()
	r, returns := parseCall(t, call)
	p, err := r.Plan()
	if err != nil {
		e := spec.AsError(err)
		return fmt.Sprintf("error %s: %s\n", e.Code, e.Message)
	}
	var out strings.Builder
	results := map[int]string{}
	for i := range p.Len() {
		leg := p.Leg(i)
		info := r.Layout[leg.Rank]
		fmt.Fprintf(&out, "rank %d (dp %d tp %d pp %d cp %d) gets part %d: %s\n",
			leg.Rank, info.DPRank, info.TPRank, info.PPRank, info.CPRank, leg.Part, describe(r, p.Slices(leg.Part)))
		results[leg.Rank] = answer(r, p.Slices(leg.Part), leg.Rank, returns)
	}
	if p.Cast {
		out.WriteString("cast\n")
	}
	fmt.Fprintf(&out, "=> %s\n", joined(&p, results))
	return out.String()
}

// describe writes the arguments of one part.
func describe(r *Request, slices []Slice) string {
	args := make([]string, len(r.Args))
	for i, a := range r.Args {
		s := Slice{}
		if slices != nil {
			s = slices[i]
		}
		if args[i] = piece(a, i, s); a.Name != "" {
			args[i] = a.Name + "=" + args[i]
		}
	}
	if len(args) == 0 {
		return "nothing"
	}
	return strings.Join(args, ", ")
}

// rowsOf names the elements of argument i that a slice has.
func rowsOf(a Arg, i int, s Slice) []string {
	letter := string(rune('a' + i))
	if s.Take == TakeWhole {
		s.To = a.Len
	}
	rows := []string{}
	for _, k := range s.Rows {
		rows = append(rows, letter+strconv.Itoa(int(k)))
	}
	for k := s.From; k < s.To; k++ {
		rows = append(rows, letter+strconv.Itoa(k))
	}
	return rows
}

func piece(a Arg, i int, s Slice) string {
	rows := strings.Join(rowsOf(a, i, s), " ")
	switch {
	case a.Kind == KindWhole:
		return string(rune('a' + i))
	case s.Take == TakeElement:
		return rows
	case s.Take == TakeEmpty:
		return "batch without rows"
	case a.MetaOnly:
		return "meta"
	case a.Kind == KindTuple:
		return "(" + rows + ")"
	case a.Kind == KindBatch:
		return "batch[" + rows + "]"
	}
	return "[" + rows + "]"
}

// answer is what a worker returns.
func answer(r *Request, slices []Slice, rank int, returns string) string {
	at := "@" + strconv.Itoa(rank)
	if len(r.Args) == 0 || r.Args[0].Kind == KindWhole {
		return "x" + at
	}
	s := Slice{}
	if slices != nil {
		s = slices[0]
	}
	rows := rowsOf(r.Args[0], 0, s)
	for i := range rows {
		rows[i] += at
	}
	switch {
	case returns == "twice":
		var twice []string
		for _, row := range rows {
			twice = append(twice, row, row)
		}
		rows = twice
	case returns == "fewer" && len(rows) > 0:
		rows = rows[1:]
	}
	all := strings.Join(rows, " ")
	switch {
	case s.Take == TakeElement:
		return all
	case returns == "value", returns == "mixed" && rank%2 == 1:
		return "x" + at
	case returns == "tuple":
		return "(" + all + ")"
	}
	return "[" + all + "]"
}

func joined(p *Plan, results map[int]string) string {
	c := p.Collect
	if c.Join == JoinOne {
		return results[c.Rank]
	}
	ranks := c.Ranks
	if ranks == nil {
		for i := range p.Len() {
			ranks = append(ranks, p.Leg(i).Rank)
		}
	}
	lists := true
	parts := make([]string, len(ranks))
	for i, rank := range ranks {
		parts[i] = results[rank]
		lists = lists && strings.HasPrefix(parts[i], "[")
	}
	if c.Join == JoinChain && lists {
		parts = chained(p, parts)
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// chained puts the elements of all lists into one, in the caller's order.
func chained(p *Plan, parts []string) []string {
	var all []string
	lens := make([]int, len(parts))
	for i, part := range parts {
		elements := strings.Fields(strings.Trim(part, "[]"))
		lens[i] = len(elements)
		all = append(all, elements...)
	}
	if p.Partition() == nil {
		return all
	}
	perm, m := batch.Restore(p.Partition(), lens)
	if perm == nil {
		return all
	}
	var back []string
	for _, at := range perm {
		back = append(back, all[int(at)*m:(int(at)+1)*m]...)
	}
	return back
}

// grid is the layout of a shape: rank numbers run over the axes in this order,
// the first fastest.
func grid(dp, tp, pp, cp int, order string) []spec.RankInfo {
	size := map[rune]int{'d': dp, 't': tp, 'p': pp, 'c': cp}
	layout := make([]spec.RankInfo, dp*tp*pp*cp)
	for rank := range layout {
		at, n := map[rune]int{}, rank
		for _, axis := range order {
			at[axis], n = n%size[axis], n/size[axis]
		}
		layout[rank] = spec.RankInfo{
			WorldSize: len(layout), DPSize: dp, TPSize: tp, PPSize: pp, CPSize: cp,
			Rank: rank, DPRank: at['d'], TPRank: at['t'], PPRank: at['p'], CPRank: at['c'],
		}
	}
	return layout
}

// megatron is the default order of ranks.
const megatron = "tcdp"

func parseCall(t *testing.T, call string) (r *Request, returns string) {
	t.Helper()
	fields := strings.Fields(call)
	mode, ok := Lookup(fields[0])
	var dp, tp, pp, cp int
	if _, err := fmt.Sscanf(fields[1], "%dx%dx%dx%d", &dp, &tp, &pp, &cp); err != nil || !ok {
		t.Fatalf("%q: unknown mode or no shape: %v", call, err)
	}
	r = &Request{Method: "step", Mode: mode, Layout: grid(dp, tp, pp, cp, megatron)}
	for _, field := range fields[2:] {
		name, value, isSetting := strings.Cut(field, "=")
		switch {
		case !isSetting, strings.Contains(name, "("):
			r.Args = append(r.Args, parseArg(t, field))
		case name == "execute":
			r.Execute = value
		case name == "returns":
			returns = value
		case name == "ranks":
			for _, text := range strings.Split(value, ",") {
				rank, err := strconv.Atoi(text)
				if err != nil {
					t.Fatal(err)
				}
				r.Ranks = append(r.Ranks, rank)
			}
		case field == "layout=dp-first":
			r.Layout = grid(dp, tp, pp, cp, "dtcp")
		case field == "layout=backward":
			for i := range r.Layout {
				r.Layout[i].DPRank = dp - 1 - r.Layout[i].DPRank
			}
		default:
			t.Fatalf("%q: unknown setting %s", call, field)
		}
	}
	return r, returns
}

func parseArg(t *testing.T, text string) Arg {
	t.Helper()
	var a Arg
	if name, rest, ok := strings.Cut(text, ":"); ok {
		a.Name, text = name, rest
	}
	a.TypeName, text, _ = strings.Cut(text, "(")
	if text != "" {
		text, cut, isCut := strings.Cut(strings.TrimSuffix(text, ")"), ";")
		if isCut {
			a.Cut = parseCut(t, cut)
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		a.Len = n
	}
	a.MetaOnly = a.TypeName == "meta"
	kinds := map[string]Kind{
		"int": KindWhole, "dict": KindWhole, "list": KindList, "tuple": KindTuple,
		"batch": KindBatch, "meta": KindBatch, "perrank": KindPerRank, "broadcast": KindBroadcast, "future": KindFuture,
	}
	kind, ok := kinds[a.TypeName]
	if !ok {
		t.Fatalf("unknown argument %q", a.TypeName)
	}
	a.Kind = kind
	return a
}

func parseCut(t *testing.T, text string) *batch.Cut {
	t.Helper()
	c := &batch.Cut{}
	for field := range strings.SplitSeq(text, ";") {
		name, list, _ := strings.Cut(field, "=")
		for number := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			switch name {
			case "w":
				c.Weights = append(c.Weights, float64(n))
			case "g":
				c.Groups = append(c.Groups, uint32(n))
			case "m":
				c.Multiple = n
			}
		}
	}
	return c
}
