package lease

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestFirstAndLast(t *testing.T) {
	var table Table
	table.Add(Worker(1), 7)
	table.Add(Worker(1), 7)
	table.Once(Call(9), 7)
	table.Once(Call(9), 7)
	if fresh, _, freed := table.Changes(); !slices.Equal(fresh, []Object{7}) || len(freed) != 0 {
		t.Fatalf("%v, %v", fresh, freed)
	}
	table.End(Call(9))
	if !table.Release(Worker(1), 7, 1) || table.Changed() || table.Len() != 1 {
		t.Error("it is held once more")
	}
	if table.Release(Worker(2), 7, 1) || table.Release(Worker(1), 8, 1) {
		t.Error("what is not held was released")
	}
	if table.Release(Worker(1), 7, 5) {
		t.Error("more was released than was held")
	}
	if fresh, _, freed := table.Changes(); len(fresh) != 0 || !slices.Equal(freed, []Object{7}) || table.Len() != 0 {
		t.Fatalf("%v, %v", fresh, freed)
	}
	if Object(3<<48|5).Node() != 3 {
		t.Error("the node is in the high bits")
	}
}

// TestAgainstModel: an object is fresh exactly when the first holder comes, and
// freed exactly when the last one goes, whatever the order of events.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var table Table
		model := map[Holder]map[Object]int{}
		known := map[Object]bool{}
		count := func(o Object) (n int) {
			for _, held := range model {
				n += held[o]
			}
			return n
		}
		for range 300 {
			h, o := Holder(r.IntN(4)), Object(r.IntN(5))
			if model[h] == nil {
				model[h] = map[Object]int{}
			}
			switch r.IntN(5) {
			case 0, 1:
				table.Add(h, o)
				model[h][o]++
			case 2:
				table.Once(h, o)
				model[h][o] = max(1, model[h][o])
			case 3:
				n := 1 + r.IntN(3)
				exact := table.Release(h, o, n)
				if exact != (model[h][o] >= n) {
					t.Fatalf("seed %d: released %d of %d: %v", seed, n, model[h][o], exact)
				}
				model[h][o] = max(0, model[h][o]-n)
			case 4:
				if r.IntN(4) == 0 {
					table.End(h)
					delete(model, h)
				}
			}
			fresh, _, freed := table.Changes()
			for _, o := range fresh {
				if known[o] {
					t.Fatalf("seed %d: %d is fresh twice", seed, o)
				}
				known[o] = true
			}
			for _, o := range freed {
				if !known[o] {
					t.Fatalf("seed %d: %d is freed and was not known", seed, o)
				}
				delete(known, o)
			}
			for o := range Object(5) {
				if known[o] != (count(o) > 0) {
					t.Fatalf("seed %d: %d has count %d, known: %v", seed, o, count(o), known[o])
				}
			}
			if table.Len() != len(known) {
				t.Fatalf("seed %d: %d objects, %d known", seed, table.Len(), len(known))
			}
		}
	}
}

// A loan lasts as long as its holder's count, and a moved object is not lent.
func TestLoans(t *testing.T) {
	var table Table
	a, b := Worker(1), Worker(2)
	table.Add(a, 7)
	if table.Lend(a, 7) != 0 || table.Lend(b, 7) != 0 {
		t.Error("an object was lent whose place nobody knows")
	}
	table.Place(7, 40)
	table.Add(b, 7)
	for _, h := range []Holder{a, a, b} { // once is enough
		if table.Lend(h, 7) != 40 {
			t.Errorf("not lent to %d, who has it", h)
		}
	}
	if table.Lend(Worker(3), 7) != 0 {
		t.Error("lent to somebody who does not have it")
	}
	if lent := table.Loans(); !slices.Equal(lent, []Lent{{7, a, false}, {7, b, false}}) || table.Lending() {
		t.Errorf("%v", lent)
	}
	table.Changes()
	table.Move(7)
	table.Add(a, 7)
	if table.Lend(a, 7) != 0 {
		t.Error("a moved object was lent")
	}
	table.Release(a, 7, 1)
	table.End(b)
	if _, lent, freed := table.Changes(); !slices.Equal(lent, []Lent{{7, b, true}}) || len(freed) != 0 {
		t.Errorf("%v, %v", lent, freed)
	}
	table.Release(a, 7, 1)
	if _, lent, freed := table.Changes(); !slices.Equal(lent, []Lent{{7, a, true}}) || len(freed) != 1 {
		t.Errorf("%v, %v", lent, freed)
	}
}

// Of a loan that ended before it was told nobody hears; one that began anew is told
// once, after the end of the one before it.
func TestLoansThatEndSoon(t *testing.T) {
	var table Table
	a, b := Worker(1), Worker(2)
	for _, h := range []Holder{a, b} {
		table.Add(h, 7)
	}
	table.Place(7, 40)
	table.Lend(a, 7)
	table.End(a)
	table.Add(a, 7)
	table.Lend(a, 7)
	table.Lend(b, 7)
	table.End(b)
	if _, ended, _ := table.Changes(); len(ended) != 0 {
		t.Errorf("%v", ended)
	}
	if lent := table.Loans(); !slices.Equal(lent, []Lent{{7, a, false}}) {
		t.Errorf("%v", lent)
	}
	table.Add(b, 7)
	table.End(a)
	table.Add(a, 7)
	table.Lend(a, 7)
	if _, ended, _ := table.Changes(); !slices.Equal(ended, []Lent{{7, a, true}}) {
		t.Errorf("%v", ended)
	}
	if _, lent := table.On(0); !slices.Equal(lent, []Lent{{7, a, false}}) || len(table.Loans()) != 0 {
		t.Errorf("%v", lent)
	}
	table.End(a)
	if _, ended, _ := table.Changes(); !slices.Equal(ended, []Lent{{7, a, true}}) {
		t.Errorf("%v, which On had told", ended)
	}
}

// What a holder that comes back says that it has takes the place of its counts;
// nothing is freed that it still knows of.
func TestReplace(t *testing.T) {
	var table Table
	a := Worker(1)
	table.Add(a, 7)
	table.Add(a, 7)
	table.Add(a, 8)
	table.Add(Worker(2), 8)
	table.Place(7, 40)
	table.Lend(a, 7)
	table.Loans()
	table.Changes()
	table.Replace(a, map[Object]int{7: 1, 9: 3})
	if fresh, lent, freed := table.Changes(); !slices.Equal(fresh, []Object{9}) || len(lent) != 0 || len(freed) != 0 {
		t.Errorf("%v, %v, %v", fresh, lent, freed)
	}
	if got := table.Holders(func(o Object) bool { return o == 9 }); len(got) != 1 || !slices.Equal(got[9], []Share{{a, 3, 0}}) {
		t.Errorf("%v", got)
	}
	if table.Raise(a, map[Object]int{9: 1, 7: 2}); !table.Release(a, 7, 2) || !table.Release(a, 9, 3) {
		t.Error("raised by too much, or too little")
	}
	if _, lent, freed := table.Changes(); !slices.Equal(lent, []Lent{{7, a, true}}) || !slices.Equal(freed, []Object{7, 9}) {
		t.Errorf("%v, %v", lent, freed)
	}
	table.Add(a, 5<<48|1)
	table.Assume(a)
	if objects, lent := table.On(5); !slices.Equal(objects, []Object{5<<48 | 1}) || !slices.Equal(lent, []Lent{{5<<48 | 1, a, false}}) {
		t.Errorf("%v, %v", objects, lent)
	}
	if table.Replace(a, nil); table.Len() != 1 || !table.Has(8) {
		t.Errorf("%d objects are left", table.Len())
	}
}

// A loan may end before its holder lets go; each that was made is given back by
// itself, as the next may be on its way already.
func TestLoansThatAreGivenBack(t *testing.T) {
	var table Table
	a := Worker(1)
	table.Unlend(a, 7, 1) // of which nobody has heard
	for range 2 {
		table.Add(a, 7)
		table.Place(7, 40)
		table.Lend(a, 7)
	}
	table.Changes()
	table.Unlend(a, 7, 1)
	if lent := table.Loans(); !slices.Equal(lent, []Lent{{7, a, false}}) || table.Changed() {
		t.Errorf("%v: the second stands", lent)
	}
	table.Unlend(a, 7, 5)
	table.Unlend(a, 7, 1)
	if _, ended, freed := table.Changes(); !slices.Equal(ended, []Lent{{7, a, true}}) || len(freed) != 0 {
		t.Errorf("%v, %v", ended, freed)
	}
	table.Add(a, 7)
	if table.Lend(a, 7) != 40 || !slices.Equal(table.Loans(), []Lent{{7, a, false}}) {
		t.Error("not lent again")
	}
	table.Release(a, 7, 2) // of one the loan stands, as far as was said
	if table.Changed() {
		t.Error("a loan ended with another right")
	}
	table.Release(a, 7, 1)
	if _, ended, freed := table.Changes(); !slices.Equal(ended, []Lent{{7, a, true}}) || len(freed) != 1 {
		t.Errorf("%v, %v", ended, freed)
	}
}

// What a holder says of its loans takes the place of what was counted, and its
// store is told all of it: nobody knows what another head had told.
func TestBorrows(t *testing.T) {
	var table Table
	a := Worker(1)
	table.Replace(a, map[Object]int{7: 2, 8: 1})
	table.Changes()
	table.Borrows(a, map[Object]int{7: 5, 9: 1})
	if !table.Lending() {
		t.Error("a loan that nobody hears of")
	}
	if lent := table.Loans(); !slices.Equal(lent, []Lent{{7, a, false}}) || table.Lending() {
		t.Errorf("%v", lent)
	}
	if _, ended, _ := table.Changes(); !slices.Equal(ended, []Lent{{8, a, true}}) {
		t.Errorf("%v", ended)
	}
	table.Unlend(a, 7, 1)
	if table.Changed() {
		t.Error("there were two")
	}
	table.Unlend(a, 7, 1)
	if _, ended, _ := table.Changes(); !slices.Equal(ended, []Lent{{7, a, true}}) {
		t.Errorf("%v", ended)
	}
	table.Borrows(a, map[Object]int{7: 1})
	table.End(a) // before it could be told
	if _, ended, _ := table.Changes(); !slices.Equal(ended, []Lent{{8, a, true}, {7, a, true}}) || len(table.Loans()) != 0 {
		t.Errorf("%v", ended)
	}
}
