// The rules that keep the tree readable, as tests: which folder may import
// which, what the pure packages keep away from, and what every file and folder
// has to say about itself. ARCHITECTURE.md tells the same in words.
package muster_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/muster-rl/muster"

// root is what the package at the top, the controller in Go, is called here.
const root = "(root)"

// layers orders the folders: a package imports packages of lower layers only.
// A folder below a named one (backend/local) counts as that one.
var layers = map[string]int{
	"examples":  9,
	"bench":     9,
	"worker":    8,
	root:        7,
	"value":     6,
	"object":    5,
	"cmd":       7,
	"cli":       6,
	"head":      5,
	"agent":     4,
	"backend":   4,
	"store":     4,
	"node":      2,
	"device":    2,
	"journal":   1,
	"process":   1,
	"secure":    1,
	"session":   2,
	"wire":      3,
	"sim":       3,
	"placement": 2,
	"dispatch":  2,
	"call":      2,
	"lease":     2,
	"column":    2,
	"batch":     1,
	"spec":      0,
}

// sideways are the imports between folders of one layer that are meant.
var sideways = map[string]string{
	"agent -> backend": "an agent is told what to do by a backend.Join",
	"agent -> store":   "an agent has the store of its node",
}

// pure packages take inputs and return decisions.
var pure = []string{"spec", "batch", "placement", "dispatch", "call", "lease", "node/place", "node/course"}

// impure is what a pure package does not import. time is allowed for
// time.Duration; its functions that read or wait on a clock are not (clock).
var impure = []string{"os", "os/exec", "net", "syscall", "math/rand", "math/rand/v2", "crypto/rand", "sync", "sync/atomic", "context", "io/ioutil"}

var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// dependencies are the modules that Muster itself is linked with, and why.
var dependencies = map[string]string{
	"github.com/spf13/cobra":   "commands, flags and help as people expect them",
	"github.com/spf13/pflag":   "cobra's flags",
	"github.com/tinylib/msgp":  "generated msgpack codecs: no reflection on the call path",
	"github.com/philhofer/fwd": "msgp's reader",
	"go.etcd.io/bbolt":         "the journal: one file, transactions, no server; what etcd and Consul keep theirs in",
	"go.yaml.in/yaml/v3":       "plans with the line of each key; the YAML organisation's own, without dependencies",
	"golang.org/x/sys":         "subreapers, pidfds, descriptors over sockets",
}

// goOnly are those that the SDK for Go is linked with, and why; they are no part
// of the muster program.
var goOnly = map[string]string{
	"github.com/apache/arrow-go/v18": "batches as Arrow records: the Arrow project's own",
	"github.com/goccy/go-json":       "Arrow's JSON",
	"github.com/google/flatbuffers":  "Arrow's metadata",
	"github.com/klauspost/cpuid/v2":  "Arrow's and xxh3's choice of instructions",
	"github.com/zeebo/xxh3":          "Arrow's hashes",
	"golang.org/x/exp":               "Arrow's constraints of numbers",
}

var vague = regexp.MustCompile(`(?i)^(utils?|helpers?|common|managers?|misc|base|shared|pkg|internal|lib)$`)

const (
	maxLines     = 600
	maxMainLines = 44
)

type goPackage struct {
	Dir          string
	ImportPath   string
	Name         string
	Doc          string
	Imports      []string
	TestImports  []string
	XTestImports []string
	GoFiles      []string
	Deps         []string
	Standard     bool
	Module       *struct{ Path string }
}

// packages is `go list -json` of the whole tree.
func packages(t *testing.T, args ...string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// folder is the first part of one of our import paths: "backend" of
// "…/muster/backend/local"; ok is false for what is not ours.
func folder(importPath string) (name string, ok bool) {
	if importPath == module {
		return root, true
	}
	rest, ok := strings.CutPrefix(importPath, module+"/")
	name, _, _ = strings.Cut(rest, "/")
	return name, ok
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range packages(t, "./...") {
		from, ok := folder(p.ImportPath)
		if !ok {
			continue
		}
		layer, known := layers[from]
		if !known {
			t.Errorf("folder %s has no layer: give it one in arch_test.go and a paragraph in ARCHITECTURE.md", from)
			continue
		}
		for _, imported := range p.Imports {
			to, ok := folder(imported)
			if !ok || to == from || sideways[from+" -> "+to] != "" {
				continue
			}
			if layers[to] >= layer {
				t.Errorf("%s imports %s: %s is layer %d, %s is layer %d, and imports point down", p.ImportPath, imported, from, layer, to, layers[to])
			}
		}
	}
}

func TestPurePackagesDecideOnly(t *testing.T) {
	for _, p := range packages(t, "./...") {
		from, _ := folder(p.ImportPath)
		if !slices.Contains(pure, from) && !slices.Contains(pure, strings.TrimPrefix(p.ImportPath, module+"/")) {
			continue
		}
		for _, imported := range p.Imports {
			if slices.Contains(impure, imported) || strings.HasPrefix(imported, "net/") {
				t.Errorf("%s is pure and imports %s: take what it gives as an argument", p.ImportPath, imported)
			}
		}
		for _, file := range p.GoFiles {
			for _, call := range clockCalls(t, filepath.Join(p.Dir, file)) {
				t.Errorf("%s is pure and reads the clock: %s; take the time as an argument", p.ImportPath, call)
			}
		}
	}
}

// clockCalls finds time.Now and its like.
func clockCalls(t *testing.T, file string) []string {
	t.Helper()
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	ast.Inspect(tree, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, sel.Sel.Name) {
			found = append(found, "time."+sel.Sel.Name+" at "+set.Position(sel.Pos()).String())
		}
		return true
	})
	return found
}

func TestLinkedModulesAreFew(t *testing.T) {
	for _, p := range packages(t, "-deps", "./...") {
		if p.Standard || p.Module == nil || p.Module.Path == module {
			continue
		}
		if dependencies[p.Module.Path] == "" && goOnly[p.Module.Path] == "" {
			t.Errorf("%s is linked in and is not in arch_test.go's list: do without, or say there why it is worth it", p.Module.Path)
		}
	}
}

// What the SDK for Go needs never gets into the program that everybody starts.
func TestTheProgramStaysSmall(t *testing.T) {
	for _, p := range packages(t, "-deps", "./cmd/muster") {
		if p.Module != nil && goOnly[p.Module.Path] != "" {
			t.Errorf("the muster program is linked with %s (%s), which only the SDK for Go needs", p.ImportPath, p.Module.Path)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t, "./...") {
		if len(p.GoFiles) == 0 {
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment: say what it owns, what it may import, what it never does", p.ImportPath)
		}
		if vague.MatchString(p.Name) || vague.MatchString(path.Base(p.ImportPath)) {
			t.Errorf("%s: a folder is a noun of the domain", p.ImportPath)
		}
	}
}

// source is a text file of the tree, by its path from the root.
type source struct {
	path string
	text string
}

// sources reads every Go and Python file, script and document of the tree.
func sources(t *testing.T, suffixes ...string) []source {
	t.Helper()
	built := []string{".git", "build", "dist", "node_modules", "__pycache__", "_bin", "testdata"}
	var all []source
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(built, d.Name()) || strings.HasSuffix(d.Name(), ".egg-info") || strings.HasSuffix(d.Name(), "_cache")):
			return filepath.SkipDir
		case !d.Type().IsRegular() || !slices.Contains(suffixes, filepath.Ext(name)):
			return nil
		}
		text, err := os.ReadFile(name)
		all = append(all, source{name, string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFilesFitInTheHead(t *testing.T) {
	for _, f := range sources(t, ".go", ".py") {
		lines := strings.Count(f.text, "\n")
		if lines > maxLines && !strings.HasSuffix(f.path, "_gen.go") {
			t.Errorf("%s has %d lines, at most %d: is it still one idea?", f.path, lines, maxLines)
		}
		if f.path == "cmd/muster/main.go" && lines > maxMainLines {
			t.Errorf("%s has %d lines, at most %d: what it does belongs into cli", f.path, lines, maxMainLines)
		}
	}
}

func TestPythonModulesSayWhatTheyAre(t *testing.T) {
	docstring := regexp.MustCompile(`\A(#[^\n]*\n|\n)*[rR]?("""|")`)
	for _, f := range sources(t, ".py") {
		base := strings.TrimSuffix(filepath.Base(f.path), ".py")
		if vague.MatchString(strings.TrimPrefix(base, "_")) {
			t.Errorf("%s: a module is a noun of the domain", f.path)
		}
		if strings.HasPrefix(f.path, "python/muster/") && !docstring.MatchString(f.text) {
			t.Errorf("%s has no docstring: say what it owns and never does", f.path)
		}
	}
}

// Paths of the machine that something was written on help nobody else.
func TestNoPathsOfOneMachine(t *testing.T) {
	ours := regexp.MustCompile(`/(?:[w]ork|[f]arm|[r]oot|[U]sers|[h]ome/[a-z]+)/[A-Za-z0-9._]`)
	for _, f := range sources(t, ".go", ".py", ".md", ".sh", ".toml", ".yml", ".txt", "") {
		for i, line := range strings.Split(f.text, "\n") {
			if found := ours.FindString(line); found != "" {
				t.Errorf("%s:%s: %s… is a path of one machine", f.path, strconv.Itoa(i+1), found)
			}
		}
	}
}

// The map names every folder there is, and no folder that is not there.
func TestArchitectureIsTheTree(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		hidden := strings.HasPrefix(e.Name(), ".") || strings.HasPrefix(e.Name(), "_")
		if !e.IsDir() || hidden || e.Name() == "build" || e.Name() == "dist" {
			continue
		}
		if !strings.Contains(string(text), "**"+e.Name()+"/**") {
			t.Errorf("ARCHITECTURE.md has no paragraph that starts with **%s/**", e.Name())
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^- \*\*([a-z_./]+)/\*\*`).FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("ARCHITECTURE.md describes %s/, which is not there", m[1])
		}
	}
}
