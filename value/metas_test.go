package value

import (
	"reflect"
	"testing"

	"github.com/muster-rl/muster/object/objecttest"
)

func TestMetasAreMerged(t *testing.T) {
	one := func(meta map[string]any) *Batch { return sampleBatch(t, 0, 1, 1, meta) }
	a := one(map[string]any{"step": 1, "metrics": map[string]any{"loss": 1.5, "lens": []int{1}, "grad": ArrayOf([]float32{1})}})
	b := one(map[string]any{"step": 2, "more": "x", "metrics": map[string]any{"loss": 2.5, "lens": []int{2, 3}, "grad": ArrayOf([]float32{2, 3}), "own": 1}})
	c := one(nil)
	all, err := Concat(a, b, c, a)
	if err != nil {
		t.Fatal(err)
	}
	got, err := all.Meta()
	want := map[string]any{"step": int64(1), "more": "x", "metrics": map[string]any{
		"loss": []any{1.5, 2.5}, "lens": []any{int64(1), int64(2), int64(3)}, "grad": ArrayOf([]float32{1, 2, 3}), "own": []any{int64(1)},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%#v, %v", got, err)
	}
	odd, err := Concat(one(map[string]any{"metrics": 1}), one(map[string]any{"metrics": 2}))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := odd.Meta(); err != nil || !reflect.DeepEqual(got, map[string]any{"metrics": []any{int64(1), int64(2)}}) {
		t.Error(got, err)
	}
	ids, err := a.Select("ids")
	if err != nil {
		t.Fatal(err)
	}
	text, err := a.Select("prompt")
	if err != nil {
		t.Fatal(err)
	}
	side, err := ids.Union(text)
	if err != nil || len(side.handle.Metas) != 1 {
		t.Error("the same meta twice", err)
	}
	if got, err := c.Meta(); got != nil || err != nil {
		t.Error(got, err)
	}
}

// TestMetricsOfEachPart: parts that agree count each, one that was cut once.
func TestMetricsOfEachPart(t *testing.T) {
	with := func(acc float64) *Batch {
		return sampleBatch(t, 0, 4, 1, map[string]any{"step": 1, "metrics": map[string]any{"acc": acc, "grad": ArrayOf([]float32{1})}})
	}
	r := objecttest.New(t)
	exchanged := func(b *Batch) *Batch {
		back, m := passed[*Batch](t, r, b)
		m.Release()
		return back
	}
	a, b := with(1), with(1)
	for _, c := range []struct {
		parts []*Batch
		want  any
	}{
		{[]*Batch{a, b}, []any{1.0, 1.0}},
		{[]*Batch{a, b, with(0), with(1)}, []any{1.0, 1.0, 0.0, 1.0}},
		{[]*Batch{a.Slice(2, 4), a.Slice(0, 2), a}, 1.0},
		{[]*Batch{a.Slice(2, 4), b, a.Slice(0, 2)}, []any{1.0, 1.0}},
		{[]*Batch{exchanged(a.Slice(0, 2)), exchanged(a.Slice(2, 4))}, 1.0},
	} {
		all, err := Concat(c.parts...)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range []*Batch{all, exchanged(all)} {
			if got, err := one.Meta(); err != nil || got["step"] != int64(1) || !reflect.DeepEqual(got["metrics"].(map[string]any)["acc"], c.want) {
				t.Errorf("%v, %v, not %v", got, err, c.want)
			}
		}
	}
}

// TestMetricsThatWereAdded: what ranks add counts for each, what they added it to
// once, also where some have changed a part of that.
func TestMetricsThatWereAdded(t *testing.T) {
	dict := func(pairs ...any) map[string]any {
		made := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			made[pairs[i].(string)] = pairs[i+1]
		}
		return made
	}
	const added, twice = 1 << layerBits, 2 << layerBits
	for _, c := range []struct {
		told []metrics
		want any
	}{
		{[]metrics{{1, dict("old", 5)}, {added | 3, dict("acc", 1)}}, dict("old", 5, "acc", 1)},
		{
			[]metrics{{1, dict("old", 5)}, {added | 3, dict("acc", 1)}, {1, dict("old", 5)}, {added | 5, dict("acc", 2)}},
			dict("old", 5, "acc", []any{1, 2}),
		},
		{
			[]metrics{{1, dict("old", 5)}, {7, dict("old", 6, "own", 7)}, {added | 3, dict("acc", 1)}, {twice | 3, dict("time", 2)}},
			dict("old", []any{5, 6}, "own", []any{7}, "acc", 1, "time", 2),
		},
		{ // one has changed what another has left as it was
			[]metrics{{1, dict("old", 5)}, {added | 3, dict("acc", 1)}, {1, dict("old", 5, "acc", 0)}},
			dict("old", 5, "acc", []any{0, 1}),
		},
		{[]metrics{{1, 5}, {1, 5}}, 5},
		{[]metrics{{1, 5}, {added | 3, dict("acc", 1)}}, []any{5, dict("acc", 1)}},
	} {
		var told []metrics
		for _, m := range c.told {
			told = addMetrics(told, m)
		}
		if got := mergeMetrics(told); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v, not %v", got, c.want)
		}
	}
}
