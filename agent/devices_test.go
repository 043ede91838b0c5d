package agent

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
)

// A tool that was left behind in a driver must not hold up those who clear
// after workers.
func TestWhatFindingDevicesLeftIsNotClearedInVain(t *testing.T) {
	tool := exec.Command("sleep", "1000")
	if err := tool.Start(); err != nil {
		t.Fatal(err)
	}
	reaper, err := process.NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	defer reaper.Close()
	adoptStuck(reaper)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := reaper.Clear(ctx); err != nil {
		t.Error(err)
	}
	if entry, err := process.Read(tool.Process.Pid); err != nil || entry.Gone() {
		t.Errorf("it was cleared: %v, %v", entry, err)
	}
	_ = tool.Process.Kill()
	_ = tool.Wait() // or the reaper did
}

func TestTroubleIsReported(t *testing.T) {
	node := report(backend.Join{Virtual: -1}, []spec.Device{}, spec.Errorf(spec.CodeResources, "GPU 3 is lost"), 1)
	if node.Trouble != "GPU 3 is lost" || node.Virtual {
		t.Errorf("%+v", node)
	}
	if node := report(backend.Join{}, nil, nil, 1); node.Trouble != "" {
		t.Errorf("%+v", node)
	}
}

// With the owner gone nobody waits for devices any more.
func TestFindingDevicesEndsWithTheOwner(t *testing.T) {
	gone := make(chan struct{})
	close(gone)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = findDevices(t.Context(), backend.Join{Virtual: -1, Python: os.Args[0]}, gone)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("still looking")
	}
}
