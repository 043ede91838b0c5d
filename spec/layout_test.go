package spec

import (
	"errors"
	"strings"
	"testing"
)

func TestLayoutIsMegatrons(t *testing.T) {
	infos, err := Layout(16, Shape{TP: 2, CP: 2, PP: 2})
	if err != nil {
		t.Fatal(err)
	}
	// rank: tp, cp, dp, pp
	for rank, want := range map[int][4]int{0: {0, 0, 0, 0}, 1: {1, 0, 0, 0}, 2: {0, 1, 0, 0}, 4: {0, 0, 1, 0}, 7: {1, 1, 1, 0}, 8: {0, 0, 0, 1}, 15: {1, 1, 1, 1}} {
		i := infos[rank]
		if got := [4]int{i.TPRank, i.CPRank, i.DPRank, i.PPRank}; got != want {
			t.Errorf("rank %d is at %v, want %v", rank, got, want)
		}
		if i.Rank != rank || i.WorldSize != 16 || i.DPSize != 2 {
			t.Errorf("rank %d: %+v", rank, i)
		}
	}
}

func TestLayoutsOfEveryShapeAreSound(t *testing.T) {
	for world := 1; world <= 24; world++ {
		for tp := 1; tp <= world; tp++ {
			for pp := 1; pp <= world; pp++ {
				for cp := 1; cp <= 3; cp++ {
					infos, err := Layout(world, Shape{TP: tp, PP: pp, CP: cp})
					if divides := world%(tp*pp*cp) == 0; divides != (err == nil) {
						t.Fatalf("world %d tp %d pp %d cp %d: %v", world, tp, pp, cp, err)
					}
					if err := CheckLayout(infos); err != nil {
						t.Fatalf("world %d tp %d pp %d cp %d: %v", world, tp, pp, cp, err)
					}
				}
			}
		}
	}
}

func TestCheckLayoutRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func([]RankInfo)
		rank   int
		want   []string
	}{
		"one rank disagrees": {func(i []RankInfo) { i[3].TPSize = 4 }, 3, []string{"rank 3", "tp_size=4", "tp_size=2"}},
		"rank 0 disagrees":   {func(i []RankInfo) { i[0].DPSize = 9 }, 0, []string{"rank 0", "dp_size=9", "rank 1", "dp_size=4"}},
		"wrong rank":         {func(i []RankInfo) { i[2].Rank = 5 }, 2, []string{"rank=5", "rank 2"}},
		"world":              {func(i []RankInfo) { each(i, func(r *RankInfo) { r.WorldSize = 4 }) }, 0, []string{"world_size=4", "8 workers"}},
		"product":            {func(i []RankInfo) { each(i, func(r *RankInfo) { r.PPSize = 2 }) }, 0, []string{"pp_size=2", "multiplied"}},
		"zero":               {func(i []RankInfo) { each(i, func(r *RankInfo) { r.PPSize = 0 }) }, 0, []string{"pp_size=0"}},
		"product would wrap": {func(i []RankInfo) { each(i, func(r *RankInfo) { r.PPSize, r.TPSize = 1<<32, 1<<32 }) }, 0, []string{"between 1 and"}},
		"outside":            {func(i []RankInfo) { i[6].TPRank = 2 }, 6, []string{"tp_rank=2", "0 to 1"}},
		"negative":           {func(i []RankInfo) { i[6].DPRank = -1 }, 6, []string{"dp_rank=-1"}},
		"taken":              {func(i []RankInfo) { i[7] = i[6]; i[7].Rank = 7 }, 7, []string{"rank 7", "rank 6", "tp_rank=0"}},
	} {
		t.Run(name, func(t *testing.T) {
			infos, err := Layout(8, Shape{TP: 2})
			if err != nil {
				t.Fatal(err)
			}
			test.change(infos)
			err = CheckLayout(infos)
			if !errors.Is(err, &Error{Code: CodeLayout}) || AsError(err).Rank != test.rank {
				t.Fatalf("got %v (rank %d), want a layout error of rank %d", err, AsError(err).Rank, test.rank)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
	if err := CheckLayout(nil); err != nil {
		t.Error(err)
	}
}

func each(infos []RankInfo, change func(*RankInfo)) {
	for i := range infos {
		change(&infos[i])
	}
}

func TestParseVirtual(t *testing.T) {
	for text, want := range map[string]Virtual{
		"4x8": {Nodes: 4, Devices: 8}, " 1x0 ": {Nodes: 1}, "2X4": {Nodes: 2, Devices: 4},
		"4x8+relay": {Nodes: 4, Devices: 8, Relay: true}, "4096x1024": {Nodes: 4096, Devices: 1024},
		"3x2+net":       {Nodes: 3, Devices: 2, Relay: true, Net: true},
		"3x2+net+plain": {Nodes: 3, Devices: 2, Relay: true, Net: true, Plain: true},
	} {
		got, err := ParseVirtual(text)
		if err != nil || got != want {
			t.Errorf("ParseVirtual(%q) = %+v, %v", text, got, err)
		}
		if again, err := ParseVirtual(got.String()); err != nil || again != got {
			t.Errorf("%q comes back as %+v, %v", got.String(), again, err)
		}
	}
	for text, want := range map[string]string{
		"": `no "x"`, "8": `no "x"`, "x8": "number of nodes", "4x": "number of devices", "0x8": "outside 1 to 4096",
		"4097x1": "outside", "1x1025": "outside 0 to 1024", "4x8+relais": `"relais"`, "4x8+plain": `"plain"`, "4x8+net+": `"net+"`, "4x8+relay+net": `"relay+net"`, "4x8+": "option", "-1x8": "number",
		"99999999999999999999x1": "outside", "4x8x2": "number of devices", "4 x 8": "number",
	} {
		_, err := ParseVirtual(text)
		if !errors.Is(err, &Error{Code: CodeInvalid}) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"4x8"`) {
			t.Errorf("ParseVirtual(%q): %v; want it to say %q", text, err, want)
		}
	}
}

func TestNearestName(t *testing.T) {
	methods := []string{"initialize", "train_step", "generate", "get_rank_info", "step"}
	for name, want := range map[string]string{
		"initialise": "initialize", "trainstep": "train_step", "Train_Step": "train_step", "generte": "generate",
		"setp": "step", "stop": "step", "compute_log_probs": "", "": "", "x": "", strings.Repeat("a", 10000): "",
	} {
		if got := NearestName(name, methods); got != want {
			t.Errorf("NearestName(%q) = %q, want %q", name, got, want)
		}
	}
}
