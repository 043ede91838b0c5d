package muster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-rl/muster"
)

// runs says how often each rank ran something fragile in a folder.
func runs(dir string, world int) []int {
	counts := make([]int, world)
	for rank := range counts {
		ran, _ := os.ReadFile(filepath.Join(dir, fmt.Sprint("ran-", rank)))
		counts[rank] = len(ran)
	}
	return counts
}

func TestRestarts(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	for _, how := range []string{"restart_worker", "restart_cluster"} {
		t.Run(how, func(t *testing.T) {
			c := s.cluster(how, muster.ClusterConfig{World: 3, OnFailure: how, MaxRestarts: 2})
			if err := muster.Do(ctx, c, "initialize", "made"); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			got, err := muster.Call[[]int](ctx, c, "fragile", dir, 1)
			if err != nil || fmt.Sprint(got) != "[0 1 2]" {
				t.Fatalf("run again, it gave %v, %v", got, err)
			}
			if ran := runs(dir, 3); ran[1] != 2 || (how == "restart_worker" && (ran[0] != 1 || ran[2] != 1)) {
				t.Errorf("it ran %v times", ran)
			}
			once := t.TempDir()
			code(t, muster.Do(ctx, c, "fragile_once", once, 0), muster.CodeWorkerDied, how+".fragile_once", "SIGKILL")
			who, err := muster.Call[[]map[string]any](ctx, c, "who") // when it is back
			if err != nil || len(who) != 3 || who[0]["label"] != "made" || who[1]["label"] != "made" {
				t.Fatalf("initialized again, they say %v, %v", who, err)
			}
			if n := runs(once, 3)[0]; n != 1 {
				t.Errorf("what is not idempotent ran %d times", n)
			}
			last := t.TempDir()
			code(t, muster.Do(ctx, c, "fragile", last, 2), muster.CodeWorkerDied, "not restarted", "2 of 2 within 10 min")
			code(t, muster.Do(ctx, c, "who"), muster.CodeWorkerDied, "2 of 2 within 10 min")
			if err := c.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	config := workers(t, "bad", muster.ClusterConfig{OnFailure: "again"})
	_, err := s.Cluster(ctx, config)
	code(t, err, muster.CodeInvalid, "on_failure", "restart_worker")
}
