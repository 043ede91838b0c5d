package spec

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// MaxStacks bounds how many ranks' stacks one error carries as text; of more
// ranks it has one text per group.
const MaxStacks = 64

// Stack is what one worker was doing.
type Stack struct {
	Rank   int    `msg:"rank"`
	Worker string `msg:"worker"`
	Node   string `msg:"node"`
	Text   string `msg:"text"`
	// Frames are those of the code that the worker runs for a call, innermost
	// first; none where it runs nothing, or where that is not known.
	Frames []Frame `msg:"frames,omitempty"`
	// Native says that Text has frames of C code too.
	Native bool `msg:"native,omitempty"`
}

//msgp:tuple Frame

// Frame is one line of code on a stack.
type Frame struct {
	Function string
	File     string
	Line     int
}

// StackGroup is ranks that are at the same place.
type StackGroup struct {
	Ranks []int  `msg:"ranks"`
	Place string `msg:"place"` // "in all_reduce (comm.py:12)", or a sentence
	// Answered: these had given their answer to the call that the error is of.
	Answered bool `msg:"answered,omitempty"`
}

// String tells a group on one line: "ranks 0-6 in all_reduce (comm.py:12)".
func (g StackGroup) String() string {
	who := fmt.Sprintf("rank %d", g.Ranks[0])
	if len(g.Ranks) > 1 {
		who = "ranks " + brief(g.Ranks)
	}
	if g.Answered {
		who += " (answered)"
	}
	if strings.HasPrefix(g.Place, "in ") {
		return who + " " + g.Place
	}
	return who + ": " + g.Place
}

// GroupStacks puts ranks together whose code is at the same place: the same
// functions called from the same lines. Lines count, because the usual hang of a
// collective is one rank in another call of the same function. What other
// threads do, and frames of C code, which change from look to look, do not count.
// The largest group comes first, those that have answered last.
func GroupStacks(stacks []Stack, answered func(rank int) bool) []StackGroup {
	type key struct {
		at       string
		answered bool
	}
	found := map[key]int{}
	var groups []StackGroup
	for i := range stacks {
		s := &stacks[i]
		k := key{at: s.at(), answered: answered != nil && answered(s.Rank)}
		g, ok := found[k]
		if !ok {
			g = len(groups)
			found[k] = g
			groups = append(groups, StackGroup{Place: s.Place(), Answered: k.answered})
		}
		groups[g].Ranks = append(groups[g].Ranks, s.Rank)
	}
	for i := range groups {
		slices.Sort(groups[i].Ranks)
	}
	slices.SortFunc(groups, func(a, b StackGroup) int {
		if a.Answered != b.Answered {
			if b.Answered {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(len(b.Ranks), len(a.Ranks)), cmp.Compare(a.Ranks[0], b.Ranks[0]))
	})
	return groups
}

// at is what stacks of one group have in common.
func (s *Stack) at() string {
	if len(s.Frames) == 0 {
		return s.Place()
	}
	var b strings.Builder
	for _, f := range s.Frames {
		fmt.Fprintf(&b, "%s\n%s\n%d\n", f.File, f.Function, f.Line)
	}
	return b.String()
}

var (
	standardLibrary = regexp.MustCompile(`/lib/python3[^/]*/|^<frozen |/src/(?:runtime|internal|sync|time|os|net)/`)
	installed       = regexp.MustCompile(`/(?:site|dist)-packages/`)
)

// Place says where a worker is, in a few words: the innermost frame that is not
// the standard library's, and, where that is code of a package, the innermost
// frame that is not. Without frames it is the first line of the text.
func (s *Stack) Place() string {
	if len(s.Frames) == 0 {
		line, _, _ := strings.Cut(strings.TrimSpace(s.Text), "\n")
		line, _, _ = strings.Cut(line, " (pid ") // of each rank another
		return cmp.Or(line, "nothing is known of it")
	}
	inner := slices.IndexFunc(s.Frames, func(f Frame) bool {
		return installed.MatchString(f.File) || !standardLibrary.MatchString(f.File)
	})
	inner = max(inner, 0)
	text := "in " + s.Frames[inner].String()
	if !installed.MatchString(s.Frames[inner].File) {
		return text
	}
	for _, f := range s.Frames[inner+1:] {
		if !installed.MatchString(f.File) && !standardLibrary.MatchString(f.File) {
			return text + ", called in " + f.String()
		}
	}
	return text
}

func (f Frame) String() string {
	return fmt.Sprintf("%s (%s:%d)", f.Function, path.Base(f.File), f.Line)
}

// TellStacks gives an error the stacks of ranks: groups of all, and the texts of
// those that have not answered, of one rank per group where they are many.
func (e *Error) TellStacks(stacks []Stack, answered func(rank int) bool) {
	e.Groups = GroupStacks(stacks, answered)
	e.Stacks = nil
	var shown []int
	for _, g := range e.Groups {
		if !g.Answered {
			shown = append(shown, g.Ranks...)
		}
	}
	if len(shown) > MaxStacks {
		shown = shown[:0]
		for _, g := range e.Groups {
			if !g.Answered && len(shown) < MaxStacks {
				shown = append(shown, representative(g, stacks).Rank)
			}
		}
	}
	slices.Sort(shown)
	for i := range stacks {
		if _, ok := slices.BinarySearch(shown, stacks[i].Rank); ok {
			e.Stacks = append(e.Stacks, stacks[i])
		}
	}
}

// representative is the stack that is shown for a group: one with frames of C
// code, if any has them, else the lowest rank's. nil: there is none.
func representative(g StackGroup, stacks []Stack) *Stack {
	var first *Stack
	for i := range stacks {
		s := &stacks[i]
		if _, ok := slices.BinarySearch(g.Ranks, s.Rank); !ok {
			continue
		}
		if s.Native {
			return s
		}
		if first == nil {
			first = s
		}
	}
	return first
}

// mostGroups is how many groups people are shown.
const mostGroups = 16

// GroupLines tells groups a line each, as many as fit on a screen.
func GroupLines(groups []StackGroup) []string {
	var lines []string
	for i, g := range groups {
		if i == mostGroups {
			rest := 0
			for _, more := range groups[i:] {
				rest += len(more.Ranks)
			}
			return append(lines, fmt.Sprintf("… and %d more ranks at %d other places", rest, len(groups)-i))
		}
		lines = append(lines, g.String())
	}
	return lines
}

//msgp:ignore Detail

// Detail is one group's stack in full.
type Detail struct {
	Group StackGroup
	Stack *Stack
}

// Details are the stacks that stand for groups, without those of ranks that have
// answered, as many as GroupLines tells.
func Details(groups []StackGroup, stacks []Stack) []Detail {
	var details []Detail
	for i, g := range groups {
		if s := representative(g, stacks); s != nil && i < mostGroups && !g.Answered {
			details = append(details, Detail{g, s})
		}
	}
	return details
}

// stacksText is an error's stacks for people: who is where, then each place once.
func (e *Error) stacksText() string {
	var b strings.Builder
	if len(e.Groups) > 1 || (len(e.Groups) == 1 && len(e.Groups[0].Ranks) > 1) {
		b.WriteString("\n\n  " + strings.Join(GroupLines(e.Groups), "\n  "))
	}
	for _, d := range e.details() {
		b.WriteString("\n\n" + d.title() + "\n" + strings.TrimRight(d.Stack.Text, "\n"))
	}
	return b.String()
}

func (e *Error) details() []Detail {
	if len(e.Groups) > 0 {
		return Details(e.Groups, e.Stacks)
	}
	var each []Detail
	for i := range e.Stacks {
		each = append(each, Detail{StackGroup{Ranks: []int{e.Stacks[i].Rank}}, &e.Stacks[i]})
	}
	return each
}

func (d Detail) title() string {
	who := d.Stack.Worker + " on " + d.Stack.Node
	if others := len(d.Group.Ranks) - 1; others > 0 {
		return fmt.Sprintf("%s had not answered, like %d more at this place:", who, others)
	}
	return who + " had not answered:"
}
