package muster_test

import (
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-rl/muster"
)

// python is an interpreter that has the SDK, or the test is skipped.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("MUSTER_TEST_PYTHON")
	if path == "" {
		path, _ = filepath.Abs("build/venv/bin/python")
	}
	if said, err := exec.Command(path, "-c", "import muster, numpy").CombinedOutput(); err != nil {
		t.Skipf("needs python: %s has no muster and numpy (make venv, or set MUSTER_TEST_PYTHON): %v %s", path, err, said)
	}
	return path
}

const roles = `
import dataclasses, numpy
from muster import Dispatch, Worker, register

@dataclasses.dataclass
class Sample:
    prompt: str
    max_len: int = 7

class Opaque:
    def __init__(self, x): self.x = x
    def __reduce__(self): return Opaque, (self.x,)

class Role(Worker):
    @register(Dispatch.ONE_TO_ALL_ONE)
    def values(self):
        return {"tuple": (1, "a"), "set": {5}, "complex": 1+2j, "big": -3 << 100, "array": numpy.arange(6, dtype="f4").reshape(2, 3),
                "scalar": numpy.float32(1.5), "sample": Sample("p"), "range": range(3), "none": None, "bytes": b"ab"}
    @register(Dispatch.DP_MP_COMPUTE)
    def double(self, rows, *, plus=0): return [2 * r + plus for r in rows]
    def opaque(self): return Opaque(3)
    def take(self, x): return x.x
    def types(self, *args): return [type(a).__name__ for a in args]
    def config(self): return self.worker_config["lr"]
    def array(self, a): return a * 2
    def long(self, text): return {"text": text + "!", "bytes": bytearray(text.encode()), "back": [text]}
    def fail(self): raise ValueError("no rows")
    def spin(self):
        while True: pass
`

func TestPythonClusters(t *testing.T) {
	interpreter := python(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "roles.py"), []byte(roles), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, muster.Options{Virtual: "1x4", Python: interpreter})
	ctx := testContext(t)
	pool, err := s.Pool(ctx, 1, 4)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Cluster(ctx, muster.ClusterConfig{
		Name: "role", Class: "roles.Role", PyModules: []string{dir}, Pool: pool, Devices: "0-3", Config: map[string]any{"lr": 0.5},
	})
	if err != nil {
		t.Fatal(err)
	}
	type sample struct {
		Prompt string
		MaxLen int
	}
	got, err := muster.Call[struct {
		Tuple   []any
		Set     []int
		Complex complex128
		Big     *big.Int
		Array   muster.Array
		Scalar  float64
		Sample  sample
		Range   []int
		None    *int
		Bytes   []byte
	}](ctx, c, "values")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Tuple, []any{int64(1), "a"}) || got.Set[0] != 5 || got.Complex != 1+2i || got.Big.BitLen() != 102 ||
		got.Array.DType != "<f4" || !reflect.DeepEqual(got.Array.Shape, []int{2, 3}) || got.Scalar != 1.5 || got.Sample != (sample{"p", 7}) ||
		len(got.Range) != 3 || got.None != nil || string(got.Bytes) != "ab" {
		t.Errorf("%+v", got)
	}
	floats, err := muster.Elements[float32](got.Array)
	if err != nil || floats[5] != 5 {
		t.Error(floats, err)
	}
	if rows, err := muster.Call[[]int](ctx, c, "double", []int{1, 2, 3, 4, 5}, muster.Kwargs{"plus": muster.Broadcast(1)}); err != nil || !reflect.DeepEqual(rows, []int{3, 5, 7, 9, 11}) {
		t.Error(rows, err)
	}
	names, err := muster.RankZero[[]string](ctx, c, "types", 1, "a", []byte("b"), got.Array, got.Big, 1i, muster.Range{Stop: 3, Step: 1}, struct{ A int }{1}, nil, []int(nil), 2.5)
	if want := "int str bytes ndarray int complex range dict NoneType list float"; err != nil || strings.Join(names, " ") != want {
		t.Error(names, err)
	}
	twice, err := muster.RankZero[[]float64](ctx, c, "array", muster.ArrayOf([]float64{1, 2.5}))
	if err != nil || !reflect.DeepEqual(twice, []float64{2, 5}) {
		t.Error(twice, err)
	}
	text := strings.Repeat("é", 1<<20)
	long, err := muster.RankZero[struct {
		Text  string
		Bytes []byte
		Back  []string
	}](ctx, c, "long", text)
	if err != nil || long.Text != text+"!" || string(long.Bytes) != text || len(long.Back) != 1 || long.Back[0] != text {
		t.Error(len(long.Text), len(long.Bytes), len(long.Back), err)
	}
	if lr, err := muster.RankZero[float64](ctx, c, "config"); err != nil || lr != 0.5 {
		t.Error(lr, err)
	}
	_, err = muster.RankZero[any](ctx, c, "opaque")
	code(t, err, muster.CodeEncoding, "role.opaque", "pickled", "Raw")
	raw, err := muster.RankZero[muster.Raw](ctx, c, "opaque")
	if err != nil {
		t.Fatal(err)
	}
	if x, err := muster.RankZero[int](ctx, c, "take", raw); err != nil || x != 3 {
		t.Error(x, err)
	}
	code(t, muster.Do(ctx, c.Rank(2), "fail"), muster.CodeUser, "role.fail on role-2-G2 (rank 2, node-0): ValueError: no rows", "roles.py")
	code(t, muster.Do(ctx, c.Rank(0), "take"), muster.CodeType, "missing x", "take(x)")
	spinning := muster.Go[any](ctx, c.Rank(1), "spin")
	spinning.Cancel()
	if _, err := spinning.Get(ctx); muster.CodeOf(err) != muster.CodeCancelled {
		t.Error(err)
	}
	if err := c.Clear(ctx); err != nil {
		t.Error(err)
	}
	if n, err := muster.Call[[]string](ctx, c.Rank(1), "types", 1); err != nil || n[0] != "int" {
		t.Error(n, err)
	}
	_, err = s.Cluster(ctx, muster.ClusterConfig{Name: "none", Class: "roles.Nothing", PyModules: []string{dir}, World: 1})
	code(t, err, muster.CodeImport, "Nothing")
	_, err = s.Cluster(ctx, muster.ClusterConfig{Name: "none", Class: "roles.Role", Python: "/bin/false", World: 1})
	code(t, err, muster.CodeImport, "/bin/false")
}

func TestPythonExample(t *testing.T) {
	t.Setenv("MUSTER_PYTHON", python(t))
	if said := printed(t, Example_python); said != "[2 4 6 8 10] <nil>\n" {
		t.Errorf("it printed %q", said)
	}
}

// The example with actors in Python and verifiers in Go, from Go and from Python.
func TestVerifiersBesidePython(t *testing.T) {
	interpreter := python(t)
	const want = "4 Python actors, 8 Go verifiers\n"
	program, err := exec.LookPath("go-verifiers")
	if err != nil {
		t.Fatal(err)
	}
	script := exec.Command(interpreter, "examples/go-verifiers/verified.py", program)
	script.Env = append(os.Environ(), "MUSTER_VIRTUAL=1x4")
	var said [2]string
	for i, cmd := range []*exec.Cmd{exec.Command(program, "-python", interpreter), script} {
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v: %s", cmd.Args, err, out)
		}
		said[i] = string(out)
	}
	if said[0] != said[1] || !strings.HasPrefix(said[0], want) || !strings.HasSuffix(said[0], "reward 1.00\n") {
		t.Errorf("from Go:\n%s\nfrom Python:\n%s", said[0], said[1])
	}
}

// printed is what f writes to stdout.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	f()
	_ = w.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
