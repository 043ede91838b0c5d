package spec

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestCheckFillsIn(t *testing.T) {
	for name, test := range map[string]struct {
		in         Cluster
		world, per int
		shape      Shape
	}{
		"world from the mapping":   {Cluster{MappingText: "0-7"}, 8, 1, Shape{DP: 8, TP: 1, PP: 1, CP: 1, EP: 1}},
		"world from gpus a worker": {Cluster{MappingText: "0-7", DevicesPerWorker: 2}, 4, 2, Shape{DP: 4, TP: 1, PP: 1, CP: 1, EP: 1}},
		"gpus a worker from world": {Cluster{Mapping: []int{3, 1, 0, 2}, World: 2}, 2, 2, Shape{DP: 2, TP: 1, PP: 1, CP: 1, EP: 1}},
		"all given":                {Cluster{MappingText: "0-7", World: 4, DevicesPerWorker: 2, Shape: Shape{DP: 2, TP: 2}}, 4, 2, Shape{DP: 2, TP: 2, PP: 1, CP: 1, EP: 1}},
		"cpu":                      {Cluster{World: 6, Shape: Shape{PP: 3}}, 6, 0, Shape{DP: 2, TP: 1, PP: 3, CP: 1, EP: 1}},
		"workers share a device":   {Cluster{MappingText: "0,0,1,1"}, 4, 1, Shape{DP: 4, TP: 1, PP: 1, CP: 1, EP: 1}},
		"experts":                  {Cluster{World: 8, Shape: Shape{TP: 2, PP: 2, EP: 4}}, 8, 0, Shape{DP: 2, TP: 2, PP: 2, CP: 1, EP: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			c := test.in
			c.Name = "actor"
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
			if c.World != test.world || c.DevicesPerWorker != test.per || c.Shape != test.shape {
				t.Errorf("world %d, per worker %d, shape %+v; want %d, %d, %+v", c.World, c.DevicesPerWorker, c.Shape, test.world, test.per, test.shape)
			}
			if c.Start != "fork" || c.VisibleDevices != "own" || c.Pickle != "on" || c.StartupSeconds != 300 || c.GraceSeconds != 10 {
				t.Errorf("defaults are missing: %+v", c)
			}
			again := c
			if err := again.Check(); err != nil || !reflect.DeepEqual(again, c) {
				t.Errorf("a second Check changed it: %+v, %v", again, err)
			}
		})
	}
}

func TestCheckRefuses(t *testing.T) {
	gpu := func(c Cluster) Cluster { c.MappingText = "0-7"; return c }
	for name, test := range map[string]struct {
		in   Cluster
		code Code
		want []string
	}{
		"no name":         {Cluster{Name: "-", World: 1}, CodeInvalid, []string{"start with '-'"}},
		"space in a name": {Cluster{Name: "a b", World: 1}, CodeInvalid, []string{`"a b"`, "' '", "a-z A-Z 0-9"}},
		"slash":           {Cluster{Name: "../x", World: 1}, CodeInvalid, []string{"'.'"}},
		"newline":         {Cluster{Name: "x\n", World: 1}, CodeInvalid, []string{`'\n'`}},
		"long name":       {Cluster{Name: strings.Repeat("x", 101), World: 1}, CodeInvalid, []string{"101 characters"}},
		"nothing":         {Cluster{}, CodePlacement, []string{"device_mapping", "world_size"}},
		"negative world":  {Cluster{World: -1}, CodePlacement, []string{"world_size is -1"}},
		"huge world":      {Cluster{World: math.MaxInt}, CodePlacement, []string{"at most 1048576"}},
		"negative per":    {gpu(Cluster{DevicesPerWorker: -2}), CodePlacement, []string{"num_gpus_per_worker is -2"}},
		"per, no mapping": {Cluster{World: 2, DevicesPerWorker: 2}, CodePlacement, []string{"num_gpus_per_worker=2", `"0-3"`}},
		"empty mapping":   {Cluster{HasMapping: true, World: 2}, CodePlacement, []string{"empty"}},
		"empty by text":   {Cluster{MappingText: "[]"}, CodePlacement, []string{"empty"}},
		"negative id":     {Cluster{Mapping: []int{0, -4}}, CodePlacement, []string{"-4", "position 1"}},
		"bad text":        {Cluster{MappingText: "0-x"}, CodePlacement, []string{"character 3", "accepted"}},
		"world too large": {gpu(Cluster{World: 9}), CodePlacement, []string{"world_size 9", "8 entries"}},
		"uneven":          {gpu(Cluster{World: 3}), CodePlacement, []string{"8 entries", "world_size 3"}},
		"uneven per":      {gpu(Cluster{DevicesPerWorker: 3}), CodePlacement, []string{"8 entries", "num_gpus_per_worker=3"}},
		"per against":     {gpu(Cluster{World: 4, DevicesPerWorker: 1}), CodePlacement, []string{"world_size 4", "num_gpus_per_worker=1", "8 entries"}},
		"twice":           {Cluster{Mapping: []int{0, 1, 2, 3, 5, 3}, World: 2}, CodePlacement, []string{"id 3", "rank 1", "3,5,3"}},
		"tp":              {gpu(Cluster{Shape: Shape{TP: 3}}), CodePlacement, []string{"tp=3", "world_size 8"}},
		"tp pp cp":        {gpu(Cluster{Shape: Shape{TP: 4, PP: 2, CP: 2}}), CodePlacement, []string{"tp=4 x pp=2 x cp=2 = 16", "world_size 8"}},
		"negative tp":     {gpu(Cluster{Shape: Shape{TP: -2}}), CodePlacement, []string{"tp=-2"}},
		"huge tp":         {gpu(Cluster{Shape: Shape{TP: math.MaxInt, PP: math.MaxInt}}), CodePlacement, []string{"larger than world_size 8"}},
		"dp":              {gpu(Cluster{Shape: Shape{TP: 2, DP: 2}}), CodePlacement, []string{"dp=2 x tp=2", "world_size is 8", "dp would be 4"}},
		"ep":              {gpu(Cluster{Shape: Shape{EP: 3}}), CodePlacement, []string{"ep=3"}},
		"env RANK":        {Cluster{World: 1, Env: map[string]string{"RANK": "3"}}, CodeInvalid, []string{`RANK="3"`}},
		"env devices":     {Cluster{World: 1, Env: map[string]string{"CUDA_VISIBLE_DEVICES": "0"}}, CodeInvalid, []string{"CUDA_VISIBLE_DEVICES", "device_mapping"}},
		"env odd":         {Cluster{World: 1, Env: map[string]string{"A=B": "0"}}, CodeInvalid, []string{`"A=B"`}},
		"env NUL":         {Cluster{World: 1, Env: map[string]string{"A": "x\x00"}}, CodeInvalid, []string{"NUL"}},
		"start":           {Cluster{World: 1, Start: "thread"}, CodeInvalid, []string{`start is "thread"`, "fork", "spawn"}},
		"visible_devices": {Cluster{World: 1, VisibleDevices: "all"}, CodeInvalid, []string{`"own" or "node"`}},
		"pickle":          {Cluster{World: 1, Pickle: "no"}, CodeInvalid, []string{`"on" or "off"`}},
		"max_concurrency": {Cluster{World: 1, MaxConcurrency: -1}, CodeInvalid, []string{"max_concurrency is -1"}},
		"startup_timeout": {Cluster{World: 1, StartupSeconds: math.NaN()}, CodeInvalid, []string{"startup_timeout is NaN"}},
		"on_failure":      {Cluster{World: 1, OnFailure: "retry"}, CodeInvalid, []string{`on_failure is "retry"`, `"fail", "restart_worker" or "restart_cluster"`}},
		"max_restarts":    {Cluster{World: 1, MaxRestarts: -1}, CodeInvalid, []string{"max_restarts is -1"}},
		"restart_window":  {Cluster{World: 1, RestartWindowSeconds: -5}, CodeInvalid, []string{"restart_window is -5"}},
		"endless":         {Cluster{World: 1, GraceSeconds: math.Inf(1)}, CodeInvalid, []string{"grace is +Inf"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := test.in
			if c.Name == "" {
				c.Name = "actor"
			}
			err := c.Check()
			if !errors.Is(err, &Error{Code: test.code}) {
				t.Fatalf("got %v, want code %s", err, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if e := AsError(err); e.Cluster != c.Name {
				t.Errorf("the error names cluster %q", e.Cluster)
			}
		})
	}
	if err := (&Cluster{World: 1}).Check(); err == nil || !strings.Contains(err.Error(), "needs a name") {
		t.Errorf("no name: %v", err)
	}
}

func TestCheckLeavesTheCallersSlicesAlone(t *testing.T) {
	mapping := []int{3, 2, 1, 0}
	c := Cluster{Name: "a", Mapping: mapping, World: 2}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(mapping, []int{3, 2, 1, 0}) {
		t.Errorf("the mapping was reordered: %v", mapping)
	}
}
