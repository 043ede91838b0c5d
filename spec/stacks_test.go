package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const torch = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"

func hung(rank int, frames ...Frame) Stack {
	return Stack{
		Rank: rank, Worker: fmt.Sprintf("train-%d", rank), Node: fmt.Sprintf("node-%d", rank/8),
		Text: fmt.Sprintf("main thread of %d\n", rank), Frames: frames,
	}
}

func groupLines(stacks []Stack, answered ...int) string {
	return strings.Join(GroupLines(GroupStacks(stacks, func(rank int) bool { return slices.Contains(answered, rank) })), "\n")
}

func TestStacksAreGroupedByPlace(t *testing.T) {
	reduce := Frame{"all_reduce", torch, 2501}
	step := Frame{"step", "/srv/train.py", 40}
	later := Frame{"step", "/srv/train.py", 44}
	next := Frame{"next", "/srv/dataloader.py", 88}
	wait := Frame{"wait", "/usr/lib/python3.11/threading.py", 331}
	idle := func(rank int) Stack {
		return Stack{Rank: rank, Text: fmt.Sprintf("it is idle: it waits for a call (pid %d, state S)\n", rank)}
	}
	for name, c := range map[string]struct {
		stacks   []Stack
		answered []int
		want     string
	}{
		"the odd one out": {
			stacks: []Stack{hung(7, wait, next, step), hung(0, reduce, step), hung(1, reduce, step), hung(2, reduce, step)},
			want:   "ranks 0-2 in all_reduce (distributed_c10d.py:2501), called in step (train.py:40)\nrank 7 in next (dataloader.py:88)",
		},
		"one is in another call of the same function": {
			stacks: []Stack{hung(0, reduce, step), hung(1, reduce, later), hung(2, reduce, step)},
			want:   "ranks 0,2 in all_reduce (distributed_c10d.py:2501), called in step (train.py:40)\nrank 1 in all_reduce (distributed_c10d.py:2501), called in step (train.py:44)",
		},
		"those that have answered come last": {
			stacks: []Stack{idle(0), idle(1), hung(2, reduce)}, answered: []int{0, 1},
			want: "rank 2 in all_reduce (distributed_c10d.py:2501)\nranks 0-1 (answered): it is idle: it waits for a call",
		},
		"nothing but the standard library": {
			stacks: []Stack{hung(0, wait)}, want: "rank 0 in wait (threading.py:331)",
		},
		"nothing at all": {stacks: []Stack{{Rank: 3}}, want: "rank 3: nothing is known of it"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := groupLines(c.stacks, c.answered...); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// An error of many ranks tells on one screen who is where, and each place once.
func TestErrorWithManyStacks(t *testing.T) {
	for _, c := range []struct{ ranks, places, stacks int }{{64, 2, 64}, {64, 64, 64}, {65, 2, 2}, {1000, 3, 3}, {1000, 100, 64}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			var stacks []Stack
			for rank := range c.ranks {
				stacks = append(stacks, hung(rank, Frame{"f", "/srv/a.py", rank % c.places}))
			}
			stacks[c.ranks-1].Native = true
			e := Errorf(CodeTimeout, "train.step: no answer")
			e.TellStacks(stacks, nil)
			if len(e.Groups) != c.places || len(e.Stacks) != c.stacks {
				t.Errorf("%d groups with %d stacks", len(e.Groups), len(e.Stacks))
			}
			ranks := 0
			for _, g := range e.Groups {
				ranks += len(g.Ranks)
			}
			if ranks != c.ranks {
				t.Errorf("%d ranks in groups", ranks)
			}
			text := e.Error()
			before, _, _ := strings.Cut(text, " had not answered")
			if n := strings.Count(before, "\n"); n > 24 {
				t.Errorf("the groups take %d lines:\n%s", n, before)
			}
			if n := strings.Count(text, " had not answered"); n != min(c.places, mostGroups) {
				t.Errorf("%d stacks are shown", n)
			}
			if c.places <= mostGroups && !strings.Contains(text, fmt.Sprintf("main thread of %d\n", c.ranks-1)) && !strings.HasSuffix(text, fmt.Sprint(c.ranks-1)) {
				t.Errorf("the stack with frames of C code is not the one that is shown:\n%s", text)
			}
		})
	}
}

func TestErrorWithOneStack(t *testing.T) {
	e := Errorf(CodeTimeout, "late")
	e.TellStacks([]Stack{hung(2, Frame{"f", "/srv/a.py", 1})}, nil)
	if got, want := e.Error(), "late\n\ntrain-2 on node-0 had not answered:\nmain thread of 2"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
