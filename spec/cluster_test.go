package spec

import (
	"reflect"
	"testing"
)

// What a worker names by where it is on its node is found on the controller's.
func TestPathsThatWereShippedAreFoundBack(t *testing.T) {
	moved := map[string]string{"/cache/ab": "/project/code", "/cache/cd/m.py": "/project/m.py", "/opt/py": "/project/py", "/cache/ef/program": "/project/verify"}
	told := Runtime{
		Python: "/opt/py", Package: "/cache/abc", SysPath: []string{"/cache/ab", "/cache/ab/src", "/usr/lib/python3"},
		Dir: "/cache/ab", Main: Main{Path: "/cache/ab/train.py"}, Modules: []string{"/cache/cd/m.py", ""},
		Command: []string{"/cache/ef/program", "/cache/ab"},
	}
	want := Runtime{
		Python: "/project/py", Package: "/cache/abc", SysPath: []string{"/project/code", "/project/code/src", "/usr/lib/python3"},
		Dir: "/project/code", Main: Main{Path: "/project/code/train.py"}, Modules: []string{"/project/m.py", ""},
		Command: []string{"/project/verify", "/cache/ab"},
	}
	if got := told.Back(moved); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := told.Back(nil); !reflect.DeepEqual(got, told) {
		t.Errorf("where nothing was shipped: %+v", got)
	}
}
