package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

func workers(cluster string, states ...string) []wire.WorkerInfo {
	var all []wire.WorkerInfo
	for r, state := range states {
		all = append(all, wire.WorkerInfo{
			Rank: r, Name: fmt.Sprintf("%s-%d-G%d", cluster, r, r), NodeName: "node-0", State: state, Pid: 5000 + r,
			Devices: []wire.DeviceAt{{Device: r, Global: r + 8}}, LogFile: "/logs/" + cluster,
		})
	}
	return all
}

func ranks(dp, tp int) []spec.RankInfo {
	return []spec.RankInfo{{WorldSize: dp * tp, DPSize: dp, TPSize: tp, PPSize: 1, CPSize: 1}}
}

// some are sessions with all there is to show.
func some() []running {
	busy := running{Session: session.Session{Name: "4711-0123456789ab", Pid: 4711}}
	busy.status = wire.Status{
		Session: busy.Name, Release: wire.Release, Pid: 4711, Owner: 4700, Script: "/srv/pipeline/ppo.py", UpSec: 4210,
		LogDir: "/run/user/1000/muster-1000/logs/x", Virtual: "2x8",
		Nodes: []wire.NodeInfo{
			{Node: spec.Node{Name: "node-0", Cores: 96, Memory: 2 << 40, Virtual: true, Devices: make([]spec.Device, 8)}, State: "up", Load: wire.Load{Load: 12.34, Available: 1 << 40, Known: true}},
			{Node: spec.Node{Name: "node-1"}, State: "lost", Why: "the agent of node-1 is gone: SIGKILL"},
			{Node: spec.Node{Name: "node-2"}, State: "joining"},
			{
				Node: spec.Node{Name: "node-3", Address: "10.0.0.3", Cores: 8, Memory: 1 << 36}, State: "suspect", Far: true, SilentSec: 4.2, TripSec: 0.00021,
				Why: "nothing has come from node-3 for 4.2 s: its machine is down, or the network between is cut",
			},
			{Node: spec.Node{Index: -1, Name: "spare", Address: "10.0.0.4", Cores: 8, Memory: 1 << 36, Devices: []spec.Device{{Kind: "gpu"}, {Index: 1, Kind: "gpu"}}}, State: "unused"},
		},
		Pools: []spec.Pool{{ID: 1}, {ID: 2}},
		Clusters: []wire.ClusterInfo{
			{Name: "actor_train", Pool: 1, Workers: workers("actor_train", "ready", "ready", "dead", "ready"), Ranks: ranks(2, 2)},
			{Name: "actor_infer", Pool: 2, Workers: workers("actor_infer", "starting", "ready"), Ranks: ranks(2, 1)},
			{
				Name: "scheduler", Kind: "service", Pool: 1, Description: spec.Description{Class: "__muster_main__.Scheduler"},
				Workers: []wire.WorkerInfo{{Name: "scheduler", NodeName: "node-0", State: "ready", Engines: []spec.Engine{{Name: "server", Class: "pkg.Server"}}}}, Ranks: ranks(1, 1),
			},
			{Name: "reward", Pool: 1, Workers: []wire.WorkerInfo{{Name: "reward-0", State: "stopping"}}, Ranks: ranks(1, 1)},
		},
		Calls: []wire.CallInfo{
			{Cluster: "actor_train", Method: "train_step", State: "running", AgeSec: 75.4, Legs: 4, Out: []int{2}, Caller: "the script"},
			{Cluster: "actor_infer", Method: "generate", State: "running", AgeSec: 3.21, Legs: 2, Out: []int{1, 0}, Caller: "actor_train-0-G0"},
			{Cluster: "reward", Method: "score", State: "held", AgeSec: 0.04, Caller: "the script"},
			{Cluster: "reward", Method: "score", State: "cancelling", AgeSec: 200, Legs: 1, Out: []int{0}, Caller: "the script"},
		},
	}
	for r := range busy.status.Clusters[0].Workers {
		busy.status.Clusters[0].Workers[r].Engines = []spec.Engine{{Name: "trainer", Class: "pkg.Trainer"}}
	}
	busy.status.Clusters[0].Draining = true
	busy.status.Clusters[1].OnFailure, busy.status.Clusters[1].Restarts, busy.status.Clusters[1].Workers[0].Restarts = "restart_worker", 2, 2
	quiet := running{Session: session.Session{Name: "52-ffffffffffff", Pid: 52}}
	quiet.status = wire.Status{Session: quiet.Name, Release: "0.0.1", Pid: 52, UpSec: 200000, LogDir: "/l"}
	stopped := running{Session: session.Session{Name: "4799-aaaaaaaaaaaa", Pid: 4799}, err: errors.New("the head of session 4799-aaaaaaaaaaaa (process 4799) did not answer within 5s")}
	return []running{busy, quiet, stopped}
}

func shownStatus(all []running, name string, asJSON bool) string {
	var out bytes.Buffer
	err := showStatus(&out, all, name, asJSON)
	code := 0
	if err != nil {
		exit := exitOf(err)
		code = exit.code
		if exit.err != nil {
			fmt.Fprintf(&out, "muster: %v\n", exit.err)
		}
	}
	return fmt.Sprintf("%sexit code %d\n", out.String(), code)
}

func TestStatus(t *testing.T) {
	golden(t, "status.txt", shownStatus(some(), "", false))
	golden(t, "status.json.txt", shownStatus(some(), "", true))
}

func TestStatusOfMany(t *testing.T) {
	one := some()[:1]
	s := &one[0].status
	s.Nodes, s.Clusters, s.Calls = nil, nil, nil
	for i := range 40 {
		state := "up"
		if i == 30 {
			state = "joining"
		}
		s.Nodes = append(s.Nodes, wire.NodeInfo{Node: spec.Node{Name: fmt.Sprintf("node-%d", i), Cores: 8}, State: state})
		var out []int
		for r := range 64 {
			out = append(out, r*2)
		}
		s.Calls = append(s.Calls, wire.CallInfo{Cluster: "a", Method: "m\x1b[2J", State: "running", AgeSec: 12, Legs: 200, Out: out, Caller: "the script"})
	}
	golden(t, "status_many.txt", shownStatus(one, "", false))
	for i := range 20 {
		s.Nodes[20+i].State = "unused"
	}
	more := nodesText(s.Nodes)
	if last := lastLine(more); last != "  … and 5 more up, 20 more unused" {
		t.Errorf("%q", last)
	}
	if last := lastLine(nodesText(s.Nodes[20:])); last != "  … and 5 more, all unused" {
		t.Errorf("%q", last)
	}
	one[0].status = wire.Status{Release: wire.Release, Unknown: "Ray does not answer"}
	if text := shownStatus(one, "", false); !strings.Contains(text, "nodes that no pool has had are not known: Ray does not answer") {
		t.Error(text)
	}
}

// A session can be named in every way that people know of it.
func TestChoosingSessions(t *testing.T) {
	all := some()
	for name, want := range map[string]string{
		"4711-0123456789ab": "4711-0123456789ab", "4711": "4711-0123456789ab", "4700": "4711-0123456789ab", "ppo.py": "4711-0123456789ab",
		"/srv/pipeline/ppo.py": "4711-0123456789ab", "4711-01": "4711-0123456789ab", "5": "52-ffffffffffff",
	} {
		got, err := pickOne(all, name)
		if err != nil || got.Name != want {
			t.Errorf("%s is %s, %v", name, got.Name, err)
		}
	}
	var told []string
	for _, err := range []error{
		second(pickOne(all, "")), second(pickOne(all, "47")), second(pickOne(all, "critic.py")), second(pickOne(nil, "x")),
		third(pickCluster(append(all, all[0]), "", "reward")), third(pickCluster(all, "52", "reward")), third(pickCluster(all, "4711", "actor_trian")),
		third(pickCluster(all[:2], "", "zzz")),
	} {
		if err == nil {
			t.Fatal("no error")
		}
		told = append(told, fmt.Sprintf("%v\nexit code %d\n", err, exitOf(err).code))
	}
	text := strings.ReplaceAll(strings.Join(told, "\n"), strings.Join(session.Places(), ", "), "PLACES")
	golden(t, "choosing.txt", text)
	r, info, err := pickCluster(all, "", "actor_infer")
	if err != nil || r.Name != all[0].Name || len(info.Workers) != 2 {
		t.Errorf("%s, %+v, %v", r.Name, info, err)
	}
}

func second[A any](_ A, err error) error        { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

func TestStacksText(t *testing.T) {
	info := some()[0].status.Clusters[0]
	info.Workers = workers("actor_train", "ready", "ready", "ready", "ready")
	stack := func(rank int, text string) spec.Stack {
		s := spec.Stack{Rank: rank, Worker: info.Workers[rank].Name, Node: "node-0", Text: text}
		if strings.Contains(text, "barrier") {
			s.Frames = []spec.Frame{{Function: "barrier", File: "/srv/ppo.py", Line: 7}}
		} else {
			s.Frames = []spec.Frame{{Function: "save", File: "/srv/\x1b]0;x\x07.py", Line: 1}}
		}
		return s
	}
	barrier := "main thread (most recent call first):\n  File \"/srv/ppo.py\", line 7 in barrier\n"
	golden(t, "stacks.txt", stacksText(info, []spec.Stack{
		stack(0, barrier), stack(1, barrier), stack(2, "main thread (most recent call first):\n  File \"/srv/\x1b]0;x\x07.py\", line 1 in save\n"), stack(3, barrier),
	}))
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return lines[len(lines)-1]
}
