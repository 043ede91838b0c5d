package place

import (
	"fmt"
	"strings"
	"testing"
)

// environ reads "A=1 B=2".
func environ(text string) func(string) string {
	set := map[string]string{}
	for pair := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(pair, "=")
		set[name] = value
	}
	return func(name string) string { return set[name] }
}

func say(p Place) string {
	text := fmt.Sprintf("%d (%s) of %d (%s), leader %s (%s)", p.Rank, p.RankFrom, p.World, p.WorldFrom, p.Leader, p.LeaderFrom)
	return strings.Join(append([]string{text}, p.Notes...), "; ")
}

func number1(n int) *int { return &n }

func TestPlacesAreFound(t *testing.T) {
	for _, c := range []struct {
		name, env string
		flags     Flags
		host      string
		domain    string
		want      string
	}{
		{
			name: "flags alone", flags: Flags{Rank: number1(1), World: number1(3), Leader: "10.0.0.1"},
			want: "1 (--rank) of 3 (--world), leader 10.0.0.1 (--leader)",
		},
		{
			name: "flags before variables, however wrong those are", flags: Flags{Rank: number1(1), World: number1(3), Leader: "a"},
			env:  "BEAKER_REPLICA_RANK=x NNODES=1:4 SLURM_JOB_NODELIST=n[ SLURM_NODEID=7 SLURM_LOCALID=2",
			want: "1 (--rank) of 3 (--world), leader a (--leader)",
		},
		{
			name: "Beaker", env: "BEAKER_REPLICA_RANK=2 BEAKER_REPLICA_COUNT=4 BEAKER_LEADER_REPLICA_HOSTNAME=jupiter-1.example.org",
			want: "2 (BEAKER_REPLICA_RANK) of 4 (BEAKER_REPLICA_COUNT), leader jupiter-1.example.org (BEAKER_LEADER_REPLICA_HOSTNAME)",
		},
		{
			name: "Beaker, an address alone", env: "BEAKER_REPLICA_RANK=0 BEAKER_REPLICA_COUNT=2 BEAKER_LEADER_REPLICA_IP=10.1.2.3",
			want: "0 (BEAKER_REPLICA_RANK) of 2 (BEAKER_REPLICA_COUNT), leader 10.1.2.3 (BEAKER_LEADER_REPLICA_IP)",
		},
		{
			name: "Beaker and torchrun's that say the same", env: "BEAKER_REPLICA_RANK=1 BEAKER_REPLICA_COUNT=2 BEAKER_LEADER_REPLICA_HOSTNAME=a NODE_RANK=1 NNODES=2 MASTER_ADDR=10.0.0.1",
			want: "1 (BEAKER_REPLICA_RANK) of 2 (BEAKER_REPLICA_COUNT), leader a (BEAKER_LEADER_REPLICA_HOSTNAME); MASTER_ADDR=10.0.0.1 is not used: BEAKER_LEADER_REPLICA_HOSTNAME has the leader",
		},
		{
			name: "Slurm", env: "SLURM_NODEID=3 SLURM_NNODES=4 SLURM_JOB_NODELIST=gpu[07-09,12] SLURM_LOCALID=0",
			want: "3 (SLURM_NODEID) of 4 (SLURM_NNODES), leader gpu07 (the first of SLURM_JOB_NODELIST)",
		},
		{
			name: "Slurm, a step on some of the job's nodes", env: "SLURM_NODEID=1 SLURM_NNODES=2 SLURM_STEP_NODELIST=gpu[08-09] SLURM_JOB_NODELIST=gpu[07-09]",
			want: "1 (SLURM_NODEID) of 2 (SLURM_NNODES), leader gpu08 (the first of SLURM_STEP_NODELIST)",
		},
		{
			name: "Indexed Job with a service", env: "JOB_COMPLETION_INDEX=2 NNODES=3", flags: Flags{Service: "train.ns"}, host: "ppo-2",
			want: "2 (JOB_COMPLETION_INDEX) of 3 (NNODES), leader ppo-0.train.ns (the pod's name ppo-2 and --service)",
		},
		{
			name: "Indexed Job with a full name", env: "JOB_COMPLETION_INDEX=0", flags: Flags{World: number1(3)}, host: "ppo-0", domain: "train.ns.svc.cluster.local",
			want: "0 (JOB_COMPLETION_INDEX) of 3 (--world), leader ppo-0.train.ns.svc.cluster.local (the pod's full name ppo-0.train.ns.svc.cluster.local)",
		},
		{
			name: "LeaderWorkerSet", env: "LWS_WORKER_INDEX=1 LWS_GROUP_SIZE=2 LWS_LEADER_ADDRESS=x-0.x.ns",
			want: "1 (LWS_WORKER_INDEX) of 2 (LWS_GROUP_SIZE), leader x-0.x.ns (LWS_LEADER_ADDRESS)",
		},
		{
			name: "torchrun's, by node", env: "NODE_RANK=1 NNODES=2 RANK=8 WORLD_SIZE=16 MASTER_ADDR=fd00::1",
			want: "1 (NODE_RANK) of 2 (NNODES), leader fd00::1 (MASTER_ADDR)",
		},
		{
			name: "under torchrun, one process a node", env: "GROUP_RANK=1 GROUP_WORLD_SIZE=2 RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=[fd00::1]",
			want: "1 (GROUP_RANK) of 2 (GROUP_WORLD_SIZE), leader fd00::1 (MASTER_ADDR)",
		},
		{
			name: "torchrun's, alone", env: "RANK=1 WORLD_SIZE=2 MASTER_ADDR=a",
			want: "1 (RANK) of 2 (WORLD_SIZE), leader a (MASTER_ADDR)",
		},
		{
			name: "RANK and NNODES", env: "RANK=1 NNODES=2 WORLD_SIZE=2 MASTER_ADDR=a",
			want: "1 (RANK) of 2 (NNODES), leader a (MASTER_ADDR)",
		},
		{
			name: "a rank by flag and a number by variable", flags: Flags{Rank: number1(1), Leader: "a"}, env: "WORLD_SIZE=2",
			want: "1 (--rank) of 2 (WORLD_SIZE), leader a (--leader)",
		},
		{
			name: "one replica", flags: Flags{Rank: number1(0), World: number1(1)},
			want: "0 (--rank) of 1 (--world), leader  (the only replica)",
		},
		{
			name: "rank 0 needs no address", flags: Flags{Rank: number1(0), World: number1(3)},
			want: "0 (--rank) of 3 (--world), leader  (rank 0)",
		},
	} {
		got, err := Find(Input{Flags: c.flags, Env: environ(c.env), Host: c.host, Domain: c.domain})
		if err != nil || say(got) != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", c.name, say(got), err, c.want)
		}
	}
}

func TestPlacesThatAreNone(t *testing.T) {
	for _, c := range []struct {
		name, env string
		flags     Flags
		host      string
		want      string
	}{
		{
			name: "nothing",
			want: "the rank is not known: give --rank, or set one of BEAKER_REPLICA_RANK, SLURM_NODEID, LWS_WORKER_INDEX, JOB_COMPLETION_INDEX, NODE_RANK, GROUP_RANK, PET_NODE_RANK, RANK\n" +
				"the number of replicas is not known: give --world, or set one of BEAKER_REPLICA_COUNT, SLURM_NNODES, SLURM_JOB_NUM_NODES, LWS_GROUP_SIZE, NNODES, GROUP_WORLD_SIZE, PET_NNODES, WORLD_SIZE",
		},
		{
			name: "no rank", env: "BEAKER_REPLICA_COUNT=2",
			want: "the rank is not known: give --rank, or set one of BEAKER_REPLICA_RANK, SLURM_NODEID, LWS_WORKER_INDEX, JOB_COMPLETION_INDEX, NODE_RANK, GROUP_RANK, PET_NODE_RANK, RANK",
		},
		{
			name: "processes counted instead of nodes", env: "GROUP_RANK=1 RANK=8 WORLD_SIZE=16", flags: Flags{Leader: "a"},
			want: "the number of replicas is not known: give --world, or set one of BEAKER_REPLICA_COUNT, SLURM_NNODES, SLURM_JOB_NUM_NODES, LWS_GROUP_SIZE, NNODES, GROUP_WORLD_SIZE, PET_NNODES, WORLD_SIZE",
		},
		{
			name: "no leader", env: "NODE_RANK=1 NNODES=2",
			want: "the leader's address is not known: give --leader, or set one of BEAKER_LEADER_REPLICA_HOSTNAME, BEAKER_LEADER_REPLICA_IP, SLURM_STEP_NODELIST, SLURM_JOB_NODELIST, SLURM_NODELIST, LWS_LEADER_ADDRESS, MASTER_ADDR, PET_MASTER_ADDR",
		},
		{
			name: "no leader of an Indexed Job", env: "JOB_COMPLETION_INDEX=1 NNODES=2", host: "ppo-1",
			want: "the leader's address is not known: give --leader, or by --service the headless service of the job, from which and from this pod's name (ppo-1) it follows",
		},
		{
			name: "a rank beyond", env: "NODE_RANK=2 NNODES=2 MASTER_ADDR=a",
			want: "rank 2 (NODE_RANK) is not one of 0 to 1: there are 2 replicas (NNODES)",
		},
		{
			name: "a negative rank", flags: Flags{Rank: number1(-1), World: number1(2)},
			want: "rank -1 (--rank) is not one of 0 to 1: there are 2 replicas (--world)",
		},
		{name: "no replicas", flags: Flags{Rank: number1(0), World: number1(0)}, want: "the number of replicas is 0 (--world): at least one is needed"},
		{name: "no number", env: "NODE_RANK=one NNODES=2", want: `NODE_RANK is "one", which is no whole number`},
		{name: "a range", env: "NODE_RANK=1 NNODES=1:4", want: `NNODES is "1:4", which is no whole number; of a range, say by --world how many there are`},
		{
			name: "schedulers that disagree", env: "BEAKER_REPLICA_RANK=1 BEAKER_REPLICA_COUNT=4 NODE_RANK=0 NNODES=4",
			want: "BEAKER_REPLICA_RANK=1 and NODE_RANK=0 disagree about the rank: say which by --rank",
		},
		{
			name: "numbers that disagree", env: "SLURM_NODEID=0 SLURM_NNODES=4 NNODES=2",
			want: "SLURM_NNODES=4 and NNODES=2 disagree about the number of replicas: say which by --world",
		},
		{
			name: "a list of another length", env: "SLURM_NODEID=0 SLURM_NNODES=4 SLURM_JOB_NODELIST=n[1-3]",
			want: "SLURM_NNODES=4 and SLURM_JOB_NODELIST=n[1-3] disagree: the list has 3 nodes; say how many by --world and which is the leader by --leader",
		},
		{name: "a list that is none", env: "SLURM_NODEID=0 SLURM_NNODES=4 SLURM_JOB_NODELIST=n[1-", want: `SLURM_JOB_NODELIST is "n[1-": a bracket is not closed`},
		{
			name: "several tasks of a node", env: "SLURM_NODEID=1 SLURM_NNODES=2 SLURM_LOCALID=3 SLURM_JOB_NODELIST=n[1-2]",
			want: "SLURM_LOCALID is 3: one muster node is enough for a whole node, and here are several; start it by srun --ntasks-per-node=1",
		},
		{
			name: "under torchrun", env: "GROUP_RANK=1 GROUP_WORLD_SIZE=2 LOCAL_RANK=1",
			want: "LOCAL_RANK is 1: one muster node is enough for a whole node, and here are several; start it by itself, not by torchrun",
		},
		{name: "a port", flags: Flags{Rank: number1(1), World: number1(2), Leader: "a:29500"}, want: `the leader "a:29500" (--leader) has a port: give the host alone (a), and Ray's port by --port`},
		{name: "no host", env: "NODE_RANK=1 NNODES=2 MASTER_ADDR=a/b", want: `the leader "a/b" (MASTER_ADDR) is neither a host's name nor an address`},
	} {
		got, err := Find(Input{Flags: c.flags, Env: environ(c.env), Host: c.host})
		if err == nil || err.Error() != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", c.name, say(got), err, c.want)
		}
	}
}

func settings(t *testing.T, profiles, iface, env string, set ...string) string {
	t.Helper()
	all, err := Settings(profiles, iface, set, environ(env))
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, s := range all {
		lines = append(lines, fmt.Sprintf("%s=%s (%s)", s.Name, s.Value, s.From))
	}
	return strings.Join(lines, " ")
}

func TestSettings(t *testing.T) {
	for _, c := range []struct{ name, got, want string }{
		{"the default", settings(t, "default", "eth0", ""), "NCCL_SOCKET_IFNAME=eth0 (profile default) GLOO_SOCKET_IFNAME=eth0 (profile default)"},
		{"nothing", settings(t, "none", "eth0", ""), ""},
		{"no interface", settings(t, "default", "", ""), ""},
		{"two", settings(t, "tcp,vllm", "ib0", ""), "NCCL_SOCKET_IFNAME=ib0 (profile default) GLOO_SOCKET_IFNAME=ib0 (profile default) NCCL_IB_DISABLE=1 (profile tcp) NCCL_CUMEM_ENABLE=0 (profile vllm)"},
		{"the environment's stay", settings(t, "default", "eth0", "NCCL_SOCKET_IFNAME=ib1"), "NCCL_SOCKET_IFNAME=ib1 (the environment) GLOO_SOCKET_IFNAME=eth0 (profile default)"},
		{"set wins", settings(t, "default", "eth0", "NCCL_SOCKET_IFNAME=ib1", "NCCL_SOCKET_IFNAME=ib2", "X=a=b"), "NCCL_SOCKET_IFNAME=ib2 (--set) GLOO_SOCKET_IFNAME=eth0 (profile default) X=a=b (--set)"},
		{"unknown", settings(t, "fast", "eth0", ""), `there is no profile "fast"; there are none, default, tcp, infiniband, efa, vllm, debug`},
		{"none and another", settings(t, "none,tcp", "eth0", ""), "--profile none,tcp: none goes alone"},
		{"no value", settings(t, "none", "eth0", "", "X"), `--set "X" is not NAME=VALUE`},
		{"not the token", settings(t, "none", "eth0", "", "RAY_AUTH_TOKEN=x"), "--set RAY_AUTH_TOKEN: muster node sets that by itself; tokens come by RAY_AUTH_TOKEN or --token-file"},
	} {
		if c.got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, c.got, c.want)
		}
	}
}

// Whatever the variables hold, a place that is found is a possible one.
func FuzzFind(f *testing.F) {
	f.Add("1", "2", "n[1-2]", "0", "a", "ppo-1")
	f.Add("", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, rank, world, list, other, leader, host string) {
		env := map[string]string{
			"SLURM_NODEID": rank, "SLURM_NNODES": world, "SLURM_JOB_NODELIST": list, "NODE_RANK": other, "MASTER_ADDR": leader, "JOB_COMPLETION_INDEX": other,
		}
		p, err := Find(Input{Env: func(name string) string { return env[name] }, Host: host, Flags: Flags{Service: leader}})
		if err == nil && (p.Rank < 0 || p.Rank >= p.World || p.Rank > 0 && p.Leader == "" || p.RankFrom == "" || p.WorldFrom == "") {
			t.Fatalf("found %s", say(p))
		}
	})
}
