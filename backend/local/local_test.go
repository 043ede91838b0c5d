package local_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-rl/muster/agent"
	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/backendtest"
	"github.com/muster-rl/muster/backend/local"
	"github.com/muster-rl/muster/process"
)

// The test binary plays the programs that the backend starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "warden":
			os.Exit(agent.Warden())
		case "agent":
			os.Exit(agent.Main())
		case "owner":
			select {}
		}
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // for those: else each ends a second late
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	reaper, err := process.NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	defer reaper.Close()
	backendtest.Run(t, backendtest.Kit{
		New: func(*testing.T) backend.Backend { return local.New(reaper, "", 2) },
		Owner: func(t *testing.T) (int, func()) {
			owner, err := reaper.Start(process.Command{Path: "/proc/self/exe", Args: []string{"test", "owner"}})
			if err != nil {
				t.Fatal(err)
			}
			return owner.Pid(), func() {
				owner.Signal(syscall.SIGKILL)
				<-owner.Done()
			}
		},
		Left: func(t *testing.T) []string {
			all, err := process.Descendants(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, e := range all {
				text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", e.Pid))
				left = append(left, fmt.Sprintf("%d %s", e.Pid, strings.ReplaceAll(string(text), "\x00", " ")))
			}
			return left
		},
	})
}

func TestTheMachineAsItIs(t *testing.T) {
	names, err := local.New(nil, "", 0).Nodes(context.Background())
	if host, _ := os.Hostname(); err != nil || len(names) != 1 || (host != "" && names[0] != host) {
		t.Errorf("got %q, %v", names, err)
	}
}

func TestAProgramThatIsNotThere(t *testing.T) {
	reaper, err := process.NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	defer reaper.Close()
	_, err = local.New(reaper, "/no/such/muster", 1).Launch(context.Background(), backend.Join{Name: "node-0"})
	if err == nil || !strings.Contains(err.Error(), "node-0") {
		t.Errorf("got %v", err)
	}
}

// A head that was killed right after it had launched an agent may not have
// written that down: the next one finds it all the same.
func TestANodeHasOneAgent(t *testing.T) {
	reaper, err := process.NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	defer reaper.Close()
	dir, err := os.MkdirTemp("", "muster") // short: a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("unix", dir+"/head.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	join := backend.Join{Head: dir + "/head.sock", Token: "t", Name: "node-0", Dir: dir, LogDir: t.TempDir()}
	first, err := local.New(reaper, "", 1).Launch(context.Background(), join)
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Second))
	conn, err := listener.Accept() // so it is up
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	second, err := local.New(reaper, "", 1).Launch(context.Background(), join)
	if err != nil {
		t.Fatal(err)
	}
	if first.Handle() != second.Handle() {
		t.Errorf("%v, then %v", first.Handle(), second.Handle())
	}
	second.Kill()
	for _, a := range []backend.Agent{first, second} {
		select {
		case <-a.Done():
		case <-time.After(20 * time.Second):
			t.Fatal("it does not end")
		}
	}
}
