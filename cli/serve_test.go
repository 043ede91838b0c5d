package cli

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-rl/muster/journal"
)

// A head that was killed can be followed by another, which finds what it wrote;
// where that cannot be, it says so and leaves the place as it was.
func TestTakePlace(t *testing.T) {
	dir, err := os.MkdirTemp("", "mc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("MUSTER_DIR", dir)
	var said []error
	tell := func(err error) { said = append(said, err) }
	place, kept, before, err := takePlace(naming{}, os.Getpid(), tell)
	if err != nil || before != nil || kept.Epoch() != 1 {
		t.Fatalf("%v, %v, %v", place, before, err)
	}
	refused := func(why string) {
		t.Helper()
		if _, _, _, err := takePlace(naming{resume: place.Name}, os.Getpid(), tell); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("got %v, not %q", err, why)
		}
	}
	refused("has a head already")
	killed := func() {
		t.Helper()
		place.Close()
		if err := kept.Close(); err != nil {
			t.Fatal(err)
		}
	}
	killed()
	refused("before it had written that") // and lets go of it again
	refused("before it had written that")
	if err := errors.Join(os.Remove(filepath.Join(place.Dir, "journal")), os.Remove(filepath.Join(place.Dir, "key"))); err != nil {
		t.Fatal(err)
	}
	refused("holds no journal")
	if kept, err = journal.Create(place.Dir, nil); err != nil {
		t.Fatal(err)
	}
	kept.Put(&journal.Meta{Session: place.Name, Secret: []byte("s")}, &journal.Node{Index: 3})
	killed()
	again, kept, before, err := takePlace(naming{resume: place.Name}, os.Getpid(), tell)
	if err != nil || again.Dir != place.Dir || again.LogDir != place.LogDir || kept.Epoch() != 2 ||
		before.Epoch != 2 || before.Meta.Session != place.Name || len(before.Nodes) != 1 {
		t.Fatalf("%+v, %+v, %v", again, before, err)
	}
	place = again
	killed()
	if len(said) > 0 {
		t.Errorf("said %q", said)
	}
}

func TestResumeOfWhatIsNotThere(t *testing.T) {
	if err := runHead(false, "", naming{resume: "12-never"}, provider{}); err == nil || !strings.Contains(err.Error(), "there is no session") {
		t.Errorf("got %v", err)
	}
	for range 20 { // it waits for nobody's children any more
		if err := exec.Command("true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"--resume", "1-a", "--name", "a"}, {"--name", "1-a"}} {
		cmd := headCommand()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "name") {
			t.Errorf("%v: got %v", args, err)
		}
	}
}
