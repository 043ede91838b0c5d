package batch

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
)

// keyOf tells buffers apart as a head does: those that are shared by name.
func keyOf(bufs [][]string) func(handle, buf int) string {
	return func(handle, buf int) string {
		if name := bufs[handle][buf]; strings.HasPrefix(name, "shared") {
			return name
		}
		return ""
	}
}

func sourcesOf(bufs [][]string, sources []Source) []string {
	out := make([]string, len(sources))
	for i, s := range sources {
		out[i] = bufs[s.Handle][s.Buf]
	}
	return out
}

func TestConcat(t *testing.T) {
	for seed := range uint64(4000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		columns := letters[:1+rng.IntN(5)]
		handles := make([]Handle, 1+rng.IntN(4))
		bufs := make([][]string, len(handles))
		var want model
		weighted, grouped := true, true
		for i := range handles {
			mixed := slices.Clone(columns)
			if i > 0 && rng.IntN(2) == 0 {
				rng.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
			}
			handles[i], bufs[i] = anyHandle(rng, mixed, rng.IntN(20))
			m := expand(t, &handles[i], bufs[i])
			want.columns = columns
			want.rows = append(want.rows, make([][]cell, len(columns)-len(want.rows))...)
			for c, name := range columns {
				want.rows[c] = append(want.rows[c], m.rows[slices.Index(m.columns, name)]...)
			}
			weighted = weighted && m.weights != nil
			grouped = grouped && m.groups != nil
			want.weights, want.groups = append(want.weights, m.weights...), append(want.groups, m.groups...)
			want.metas = append(want.metas, m.metas...)
		}
		got, sources, err := Concat(handles, keyOf(bufs))
		if err != nil {
			t.Fatal(err)
		}
		if !weighted {
			want.weights = nil
		}
		if !grouped {
			want.groups = nil
		}
		made := sourcesOf(bufs, sources)
		m := expand(t, &got, made)
		// Of equal metas one stays; which equal ones there are is not the model's business.
		if len(uniq(m.metas)) != len(uniq(want.metas)) || len(m.metas) > len(want.metas) {
			t.Fatalf("metas %v of %v", m.metas, want.metas)
		}
		for i, meta := range got.Metas { // of metrics, each part once and none lost
			if meta.Origin != 0 && slices.Contains(m.metas[:i], m.metas[i]) {
				t.Fatalf("%s is there twice in %v", m.metas[i], m.metas)
			}
		}
		m.metas, want.metas = nil, nil
		same(t, "Concat", m, want)
		checkForm(t, &got)
		objects := made[:got.Objects]
		for i, name := range objects {
			if strings.HasPrefix(name, "shared") && slices.Contains(objects[:i], name) {
				t.Fatalf("%s is listed twice in %v", name, objects)
			}
		}
		if used := usedObjects(&got); len(used) != got.Objects {
			t.Fatalf("of %d objects %d are used", got.Objects, len(used))
		}
	}
}

func uniq(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// TestSlicesJoined: the slices of a handle, put together again, are that handle;
// a slice of handles put together is the slices put together.
func TestSlicesJoined(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		rows := 1 + rng.IntN(50)
		whole, bufs := anyHandle(rng, letters[:1+rng.IntN(4)], rows)
		for i := range bufs {
			bufs[i] = "shared" + bufs[i]
		}
		// As the package writes it, and without what no row lies in.
		whole, sources, err := Concat([]Handle{whole}, keyOf([][]string{bufs}))
		if err != nil {
			t.Fatal(err)
		}
		bufs = sourcesOf([][]string{bufs}, sources)
		var handles []Handle
		var all [][]string
		for at := 0; at < rows; {
			to := at + 1 + rng.IntN(rows-at)
			h := whole.Slice(at, to)
			compact, kept := h.Compact()
			handles, all = append(handles, compact), append(all, pick(bufs, kept))
			at = to
		}
		got, sources, err := Concat(handles, keyOf(all))
		if err != nil {
			t.Fatal(err)
		}
		if again := sourcesOf(all, sources); !reflect.DeepEqual(got, whole) || !slices.Equal(again, bufs) {
			t.Fatalf("seed %d: %d slices joined are\n %v of %v, not\n %v of %v", seed, len(handles), got, again, whole, bufs)
		}

		lo := rng.IntN(rows + 1)
		hi := lo + rng.IntN(rows-lo+1)
		one := whole.Slice(lo, hi)
		same(t, "a slice", expand(t, &one, bufs), func() model { m := expand(t, &got, bufs); return m.take(upTo(lo, hi)) }())
	}
}

func TestConcatRefuses(t *testing.T) {
	key := func(int, int) int { return 0 }
	of := func(columns ...string) Handle {
		h := Handle{Rows: 1, Objects: 1}
		if len(columns) > 0 {
			h.Parts = []Part{{columns, []Piece{{To: 1}}}}
		}
		return h
	}
	for _, c := range []struct {
		handles []Handle
		want    string
	}{
		{nil, "no batches to put together"},
		{[]Handle{of("a", "b"), of("a", "b"), of("a")}, "the first has 'a', 'b'; batch 2 lacks 'b': select"},
		{[]Handle{of("a"), of("a", "b")}, "the first has 'a'; batch 1 has 'b', which the first lacks: select"},
		{[]Handle{of("a", "c"), of("b", "c")}, "batch 1 lacks 'a' and has 'b': select"},
		{[]Handle{of("a"), of()}, "the first has 'a'; batch 1 lacks 'a': select"},
		{[]Handle{of(), of("a")}, "the first has none; batch 1 has 'a', which the first lacks: select"},
	} {
		_, _, err := Concat(c.handles, key)
		if !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, error is %v", c.want, err)
		}
	}
	large := Handle{Rows: MaxRows, Objects: 1, Parts: []Part{{[]string{"a"}, []Piece{{To: MaxRows}}}}}
	if _, _, err := Concat([]Handle{large, large}, key); !errors.Is(err, &spec.Error{Code: spec.CodeTooLarge}) {
		t.Errorf("%v", err)
	}
	if _, err := large.Select("aa"); !errors.Is(err, &spec.Error{Code: spec.CodeNotFound}) || !strings.Contains(err.Error(), "did you mean 'a'?") {
		t.Errorf("%v", err)
	}
	if _, err := large.Select("a", "a"); !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) {
		t.Errorf("%v", err)
	}
}
