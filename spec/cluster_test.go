package spec

import (
	"reflect"
	"testing"
)

// What a worker names by where it is on its node is found on the controller's.
func TestPathsThatWereShippedAreFoundBack(t *testing.T) {
	moved := map[string]string{"/cache/ab": "/home/me/work", "/cache/cd/m.py": "/home/me/m.py", "/opt/py": "/home/me/py", "/cache/ef/program": "/home/me/verify"}
	told := Runtime{
		Python: "/opt/py", Package: "/cache/abc", SysPath: []string{"/cache/ab", "/cache/ab/src", "/usr/lib/python3"},
		Dir: "/cache/ab", Main: Main{Path: "/cache/ab/train.py"}, Modules: []string{"/cache/cd/m.py", ""},
		Command: []string{"/cache/ef/program", "/cache/ab"},
	}
	want := Runtime{
		Python: "/home/me/py", Package: "/cache/abc", SysPath: []string{"/home/me/work", "/home/me/work/src", "/usr/lib/python3"},
		Dir: "/home/me/work", Main: Main{Path: "/home/me/work/train.py"}, Modules: []string{"/home/me/m.py", ""},
		Command: []string{"/home/me/verify", "/cache/ab"},
	}
	if got := told.Back(moved); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := told.Back(nil); !reflect.DeepEqual(got, told) {
		t.Errorf("where nothing was shipped: %+v", got)
	}
}
