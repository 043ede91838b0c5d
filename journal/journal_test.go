package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-rl/muster/spec"
)

// secret stands for what must not be readable in a file.
const secret = "s3cret-of-the-environment"

func records() State {
	return State{
		Epoch: 1,
		Meta:  Meta{Session: "17-abc", LogDir: "/logs", Secret: []byte(secret), Virtual: "2x4", Owner: Process{17, 99}, Begun: 1.5},
		Nodes: []Node{
			{Index: 0, Name: "node-0", Warden: Process{20, 5}, Agent: Process{21, 6}},
			{Index: 1, Name: "node-1", Warden: Process{22, 7}},
		},
		Callers: []Caller{{Number: 1, Proc: Process{17, 99}, Owner: true}, {Number: 300, Proc: Process{40, 8}, Worker: 12}},
		Pools:   []Pool{{Pool: spec.Pool{ID: 1, PerNode: 4, Nodes: []spec.Node{{Name: "node-0"}}}, Origin: 1<<32 | 5, Owner: 1}},
		Clusters: []Cluster{{
			Number: 7, Spec: spec.Cluster{Name: "actor", World: 2, Env: map[string]string{"TOKEN": secret}}, Pool: 1,
			Origin: 1<<32 | 6, Owner: 1, MasterAddr: "127.0.0.1", MasterPort: 4000, Up: true,
			Workers:     []Worker{{Number: 8, Rank: 0, State: "ready", Pid: 50}, {Number: 9, Rank: 1, State: "dead", Why: spec.Errorf(spec.CodeWorkerDied, "gone")}},
			Description: spec.Description{Class: "Actor"}, Ranks: []spec.RankInfo{{Rank: 0}, {Rank: 1}},
		}},
	}
}

// put writes all of a state.
func put(j *Journal, s *State) {
	j.Put(&s.Meta)
	for i := range s.Nodes {
		j.Put(&s.Nodes[i])
	}
	var rest []Record
	for i := range s.Callers {
		rest = append(rest, &s.Callers[i])
	}
	for i := range s.Pools {
		rest = append(rest, &s.Pools[i])
	}
	for i := range s.Clusters {
		rest = append(rest, &s.Clusters[i])
	}
	j.Put(rest...)
}

// TestMain is also a head that writes until it is killed: a record, then a line
// that says so.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "write" {
		j, err := Create(os.Args[2], func(err error) { panic(err) })
		if err != nil {
			panic(err)
		}
		j.Put(&Meta{Session: "1-a"})
		for n := uint32(1); ; n++ {
			j.Put(&Caller{Number: n}, &Cluster{Number: n, Spec: spec.Cluster{Config: make([]byte, n%5000)}})
			if n > 10 {
				j.Delete(&Cluster{Number: n - 10})
			}
			fmt.Println(n)
		}
	}
	os.Exit(m.Run())
}

// Whatever was written is there for the next, in whatever moment it was killed.
func TestKilledWhileWriting(t *testing.T) {
	for round := range 8 {
		dir := t.TempDir()
		cmd := exec.Command("/proc/self/exe", "write", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, last := bufio.NewScanner(out), ""
		for lines.Scan() {
			if last = lines.Text(); last == strconv.Itoa(20+17*round) {
				_ = cmd.Process.Kill() // and read what it had said
			}
		}
		_ = cmd.Wait()
		said, err := strconv.Atoi(last)
		if err != nil {
			t.Fatal(err)
		}
		j, got, err := Open(dir, nil)
		if err != nil {
			t.Fatalf("killed after %d: %v", said, err)
		}
		if n := len(got.Callers); n < said || n > said+1 {
			t.Errorf("%d were written, %d are there", said, n)
		}
		if n := len(got.Clusters); n < 10 || n > 11 {
			t.Errorf("%d clusters are there, of 10", n)
		}
		closed(t, j)
	}
}

func BenchmarkPut(b *testing.B) {
	j, err := Create(b.TempDir(), nil)
	if err != nil {
		b.Fatal(err)
	}
	s := records()
	put(j, &s)
	for b.Loop() {
		j.Put(&s.Clusters[0])
	}
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
}

func create(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := Create(dir, func(err error) { t.Error("told:", err) })
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func closed(t *testing.T, j *Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// same compares as the encoding does: nil and empty are one.
func same(t *testing.T, got, want State) {
	t.Helper()
	bytesOf := func(s *State) (all [][]byte) {
		add := func(r Record) {
			b, err := r.MarshalMsg(nil)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b)
		}
		add(&s.Meta)
		for i := range s.Nodes {
			add(&s.Nodes[i])
		}
		for i := range s.Callers {
			add(&s.Callers[i])
		}
		for i := range s.Pools {
			add(&s.Pools[i])
		}
		for i := range s.Clusters {
			add(&s.Clusters[i])
		}
		return all
	}
	if got.Epoch != want.Epoch || !reflect.DeepEqual(bytesOf(&got), bytesOf(&want)) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

func TestWhatIsPutIsThereForTheNext(t *testing.T) {
	dir := t.TempDir()
	want := records()
	j := create(t, dir)
	put(j, &want)
	j.Put(&Cluster{Number: 99, Spec: spec.Cluster{Name: "short"}}, &Caller{Number: 5})
	j.Delete(&Cluster{Number: 99}, &Caller{Number: 5}, &Pool{Pool: spec.Pool{ID: 77}})
	want.Callers[1].Worker = 13
	j.Put(&want.Callers[1]) // in the place of what was there
	if j.Epoch() != 1 {
		t.Error("epoch", j.Epoch())
	}
	closed(t, j)
	j.Put(&Caller{Number: 6}) // nothing any more
	for epoch := uint32(2); epoch < 4; epoch++ {
		next, got, err := Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		want.Epoch = epoch
		same(t, got, want)
		if next.Epoch() != epoch {
			t.Error("epoch", next.Epoch())
		}
		closed(t, next)
	}
}

func TestNothingCanBeReadInTheFile(t *testing.T) {
	dir := t.TempDir()
	s := records()
	j := create(t, dir)
	put(j, &s)
	closed(t, j)
	for _, name := range []string{fileName, keyName} {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
		for _, plain := range []string{secret, "actor", "127.0.0.1"} {
			if bytes.Contains(b, []byte(plain)) {
				t.Errorf("%s can be read in the file %s", plain, name)
			}
		}
	}
}

func TestWhatCannotBeGoneOnFrom(t *testing.T) {
	whole := func(t *testing.T) string {
		dir := t.TempDir()
		s := records()
		j := create(t, dir)
		put(j, &s)
		closed(t, j)
		return dir
	}
	overwrite := func(name string, change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(b), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		damage func(*testing.T, string)
		say    string
	}{
		"no file":      {func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, fileName)) }, "holds no journal"},
		"no key":       {func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, keyName)) }, "holds no journal"},
		"short key":    {overwrite(keyName, func(b []byte) []byte { return b[:9] }), "9 bytes instead of 32"},
		"other key":    {overwrite(keyName, func(b []byte) []byte { b[0]++; return b }), "does not open with this key"},
		"empty":        {overwrite(fileName, func([]byte) []byte { return nil }), "which session it is of"},
		"garbage":      {overwrite(fileName, func(b []byte) []byte { return bytes.Repeat([]byte("garbage "), len(b)/8) }), "cannot be opened"},
		"cut short":    {overwrite(fileName, func(b []byte) []byte { return b[:6000] }), "journal in"},
		"cut to pages": {overwrite(fileName, func(b []byte) []byte { return b[:2*os.Getpagesize()] }), "journal in"},
		"torn": {overwrite(fileName, func(b []byte) []byte {
			for i := 2 * os.Getpagesize(); i < len(b); i++ {
				b[i] ^= 0x5a
			}
			return b
		}), "journal in"},
		"set aside": {func(t *testing.T, dir string) {
			os.Rename(filepath.Join(dir, fileName), filepath.Join(dir, brokenName))
		}, "is not complete"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := whole(t)
			c.damage(t, dir)
			j, _, err := Open(dir, nil)
			if err == nil {
				closed(t, j)
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), c.say) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %q, which does not say %q and where", err, c.say)
			}
		})
	}
}

func TestNoJournalKeepsNothing(t *testing.T) {
	var j *Journal
	j.Put(&Meta{})
	j.Delete(&Meta{})
	if j.Epoch() != 1 || j.Broken() != nil || j.Close() != nil {
		t.Error("a nil journal has something to say")
	}
	if _, err := Create(filepath.Join(t.TempDir(), "not", "there"), nil); err == nil {
		t.Error("a journal without a folder")
	}
}

// A file on a disk with no room left, on which everything goes wrong.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("muster-test", dir, "tmpfs", 0, "size=1536k"); err != nil {
		t.Skipf("needs mounts: CAP_SYS_ADMIN, for a disk that is soon full (%v)", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	var told []error
	j, err := Create(dir, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	s := records()
	put(j, &s)
	if err := fill(filepath.Join(dir, "filler")); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	j.Put(&Caller{Number: 1000}) // there is room that was set aside
	if len(told) > 0 {
		t.Fatal(told)
	}
	for i := range 64 {
		j.Put(&Cluster{Number: uint32(i), Spec: spec.Cluster{Name: "large", Config: bytes.Repeat([]byte{'x'}, 1<<16)}})
	}
	if len(told) != 1 || !errors.Is(told[0], syscall.ENOSPC) && !strings.Contains(told[0].Error(), "disk failed") {
		t.Errorf("told %v", told)
	}
	if j.Broken() == nil {
		t.Error("it takes itself for whole")
	}
	if _, _, err := Open(dir, nil); err == nil || !strings.Contains(err.Error(), "not complete") {
		t.Errorf("got %v", err)
	}
	_ = j.Close()
}

// fill writes until nothing more goes.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return err
		}
	}
}

// The file cut under the mapping: to touch it is a SIGBUS, which ends nobody.
func TestFaultsAreErrors(t *testing.T) {
	dir := t.TempDir()
	var told []error
	j, err := Create(dir, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	s := records()
	put(j, &s)
	if err := os.Truncate(filepath.Join(dir, fileName), 0); err != nil {
		t.Fatal(err)
	}
	j.Put(&Caller{Number: 1000})
	if len(told) != 1 || !strings.Contains(told[0].Error(), "no other can take its place") {
		t.Errorf("told %v", told)
	}
	j.Put(&Caller{Number: 1001})
	if len(told) != 1 {
		t.Errorf("told again: %v", told)
	}
}

func FuzzRecords(f *testing.F) {
	s := records()
	for i, r := range []Record{&s.Meta, &s.Nodes[0], &s.Callers[0], &s.Pools[0], &s.Clusters[0]} {
		b, err := r.MarshalMsg(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(i, b)
	}
	f.Fuzz(func(t *testing.T, kind int, b []byte) {
		var s State
		var err error
		switch kind % 5 {
		case 0:
			err = s.addMeta(uint64(len(b)&1), b)
		case 1:
			err = add(&s.Nodes, b)
		case 2:
			err = add(&s.Callers, b)
		case 3:
			err = add(&s.Pools, b)
		default:
			err = add(&s.Clusters, b)
		}
		if err == nil && kind%5 == 4 { // what can be read can be written
			if _, err := s.Clusters[0].MarshalMsg(nil); err != nil {
				t.Error(err)
			}
		}
	})
}

func FuzzSealed(f *testing.F) {
	s, err := newSeal(make([]byte, keySize))
	if err != nil {
		f.Fatal(err)
	}
	sealed, err := s.close(poolBucket, keyBytes(1), []byte("plain"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		plain, err := s.open(poolBucket, keyBytes(1), b)
		if err == nil && !bytes.Equal(plain, []byte("plain")) {
			t.Errorf("%q opens as %q", b, plain)
		}
		if _, err := s.open(poolBucket, keyBytes(2), b); err == nil {
			t.Error("a value opens in another's place")
		}
	})
}
