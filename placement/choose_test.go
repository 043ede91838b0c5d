package placement_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
)

func TestChoose(t *testing.T) {
	pool := spec.Pool{PerNode: 2, Nodes: []spec.Node{
		{Name: "a", Devices: []spec.Device{{Index: 0}, {Index: 1}}},
		{Name: "b", Devices: []spec.Device{{Index: 4}, {Index: 5}}},
	}}
	for _, test := range []struct {
		gpus  float64
		text  string
		node  string
		taken map[int]float64
		want  []int
		told  string
	}{
		{gpus: 1, want: []int{0}},
		{gpus: 2, taken: map[int]float64{1: 0.1}, want: []int{2, 3}},
		{gpus: 2, node: "b", want: []int{2, 3}},
		{gpus: 0.5, taken: map[int]float64{0: 0.6, 1: 0.5}, want: []int{1}},
		{gpus: 0.1, taken: map[int]float64{0: 0.9}, want: []int{0}},
		{gpus: 0.3, taken: map[int]float64{0: 0.1 + 0.2 + 0.4}, want: []int{0}}, // which is a little more than 0.7
		{gpus: 1, text: "[3, 0]", want: []int{3}},
		{gpus: 1, text: "[3, 0]", taken: map[int]float64{3: 1}, want: []int{0}},
		{gpus: 2, text: "1-2", told: "placement: gpus=2, and there are 1 GPU for it"},
		{gpus: 3, told: "placement: gpus=3, and there are 2 GPUs for it"},
		{gpus: 1, text: "3", taken: map[int]float64{3: 0.5}, told: "resources: not so much is left of its pool's GPUs (device 3: x)"},
		{gpus: 1, text: "4", told: "placement: device_mapping has id 4"},
		{gpus: 1, node: "c", told: `placement: node="c" is not in the pool`},
		{gpus: -1, told: "invalid: gpus is -1"},
		{gpus: 2.5, told: "invalid: gpus is 2.5"},
	} {
		taken := map[int]placement.Taken{}
		for id, share := range test.taken {
			taken[id] = placement.Taken{Share: share, By: []string{"x"}}
		}
		c := spec.Cluster{Name: "s", Kind: spec.KindService, GPUs: test.gpus, MappingText: test.text, Node: test.node}
		got, err := placement.Choose(pool, c, taken)
		if test.told == "" {
			plan, placed := placement.Place(pool, got)
			if err != nil || placed != nil || !slices.Equal(got.Mapping, test.want) || len(plan.Workers[0].Devices) != len(test.want) {
				t.Errorf("gpus=%v of %q: got %v, %v, %v", test.gpus, test.text, got.Mapping, err, placed)
			}
			continue
		}
		code, words, _ := strings.Cut(test.told, ": ")
		var e *spec.Error
		if !errors.As(err, &e) || string(e.Code) != code || !strings.Contains(e.Message, words) {
			t.Errorf("gpus=%v of %q: %v, and not %q", test.gpus, test.text, err, test.told)
		}
	}
	small, share := spec.Cluster{Name: "s", Kind: spec.KindService, GPUs: 0.01, MappingText: "0"}, 0.0
	for range 100 { // which are a little off 1 together
		if _, err := placement.Choose(pool, small, map[int]placement.Taken{0: {Share: share}}); err != nil {
			t.Fatalf("%v are taken: %v", share, err)
		}
		share += 0.01
	}
	if _, err := placement.Choose(pool, small, map[int]placement.Taken{0: {Share: share}}); err == nil {
		t.Error("there is more than one")
	}
	if _, err := placement.Choose(spec.Pool{Nodes: []spec.Node{{Name: "a"}}}, spec.Cluster{Name: "s", Kind: spec.KindService, GPUs: 1}, nil); err == nil {
		t.Error("a pool of no devices has one")
	}
}
