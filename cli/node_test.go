package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What muster node finds, would do and refuses, as people see it.
func TestNode(t *testing.T) {
	for _, pair := range os.Environ() { // of a scheduler that runs these tests
		name, _, _ := strings.Cut(pair, "=")
		for _, prefix := range []string{"BEAKER_", "SLURM_", "LWS_", "PET_", "RAY_", "NCCL_", "GLOO_"} {
			if strings.HasPrefix(name, prefix) {
				t.Setenv(name, "")
			}
		}
	}
	for _, name := range []string{"RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX", "LOCAL_RANK"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := "--python /bin/sh --node-ip 127.0.0.1 --dry-run"
	var all []string
	for _, c := range []struct{ env, line string }{
		{"", "node " + flags + " --rank 0 --world 1 -- python train.py --name two\twords"},
		{"NODE_RANK=1 NNODES=4 MASTER_ADDR=10.0.0.1 RAY_AUTH_TOKEN=secret", "node " + flags + " --port 7000 --profile infiniband,debug --set NCCL_DEBUG=WARN --ray-flag=--num-gpus=8 -- python train.py"},
		{"SLURM_NODEID=0 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[07-08]", "node " + flags + " --token-file TOKEN --min-nodes 1 --join-timeout 90s --temp-dir /t --profile none -- sh -c true"},
		{"BEAKER_REPLICA_RANK=0 BEAKER_REPLICA_COUNT=2 BEAKER_LEADER_REPLICA_HOSTNAME=a MASTER_ADDR=b RAY_AUTH_TOKEN=secret", "node " + flags + " --json -- sh"},
		{"", "node -- sh"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "node -- sh"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=6380 RAY_AUTH_TOKEN=x", "node --min-nodes 3 --ray-flag=--block --profile x --json"},
		{"", "node --rank one -- sh"},
		{"", "node --join-timeout soon -- sh"},
	} {
		t.Run(c.line, func(t *testing.T) {
			for pair := range strings.FieldsSeq(c.env) {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			words := strings.Split(strings.ReplaceAll(c.line, "TOKEN", file), " ")
			text := c.env + " " + typed(words...)
			all = append(all, strings.TrimSpace(strings.ReplaceAll(text, file, "TOKEN")))
		})
	}
	golden(t, "node.txt", strings.Join(all, "\n\n")+"\n")
}
