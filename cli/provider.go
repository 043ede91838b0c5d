package cli

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/local"
	"github.com/muster-rl/muster/backend/ray"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
)

// provider says where a head gets its nodes from.
type provider struct {
	backend string // "local" or "ray"
	address string // of Ray
	python  string // for the bridge to Ray
	pkg     string // the folder that has the package muster, for that
}

// flags are set by the SDK, which knows the script's interpreter.
func (s *provider) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.backend, "backend", os.Getenv("MUSTER_BACKEND"), "where nodes come from: local (this machine) or ray")
	cmd.Flags().StringVar(&s.address, "ray-address", "", "of Ray's GCS, as 10.0.0.1:6379; by default RAY_ADDRESS, or the Ray of this machine")
	cmd.Flags().StringVar(&s.python, "python", os.Getenv("MUSTER_PYTHON"), "an interpreter that has ray; by default MUSTER_PYTHON, then python3")
	cmd.Flags().StringVar(&s.pkg, "package", "", "the folder that has the package muster")
	_ = cmd.Flags().MarkHidden("package")
}

func (s *provider) check() error {
	switch s.backend {
	case "", "local", "ray":
		return nil
	}
	return fmt.Errorf("MUSTER_BACKEND (or --backend) is %q; nodes come from local or from ray", s.backend)
}

// nodes is what a head's options need of it, and a function that lets go of it.
type nodes struct {
	provider
	reaper *process.Reaper
	place  session.Session
	owner  int
	warn   func(string)
	ray    *ray.Backend
}

// give is head.Options.Backend.
func (n *nodes) give(v spec.Virtual, virtual bool) (backend.Backend, error) {
	if n.backend != "ray" {
		count := 0
		if virtual {
			count = v.Nodes
		}
		b := local.New(n.reaper, "", count)
		if v.Net {
			b.OverNet()
		}
		return b, nil
	}
	if v.Net || v.Relay {
		return nil, spec.Errorf(spec.CodeInvalid, "virtual=%q: nodes of Ray join over the network by themselves; say NODESxGPUS alone", v.String())
	}
	python, err := exec.LookPath(cmp.Or(n.python, "python3"))
	if err != nil {
		return nil, spec.Errorf(spec.CodeInvalid, "the bridge to Ray needs an interpreter that has ray: %v; name one by --python or MUSTER_PYTHON", err)
	}
	b, err := ray.New(n.reaper, ray.Options{
		Address: n.address, Session: n.place.Name, Dir: n.place.Dir, LogDir: n.place.LogDir,
		Python: python, Package: cmp.Or(n.pkg, packageBeside()), Owner: n.owner, Grace: session.HeadGrace(), Warn: n.warn,
	})
	if err != nil {
		return nil, err
	}
	n.ray = b
	return b, nil
}

// close lets go of it, after the head has ended.
func (n *nodes) close() {
	if n.ray != nil {
		n.ray.Close()
	}
}

// packageBeside is the folder of the package muster that this program lies in; ""
// where it is not in one.
func packageBeside() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	folder := filepath.Dir(filepath.Dir(path)) // muster/_bin/muster
	if _, err := os.Stat(filepath.Join(folder, "_ray", "bridge.py")); err != nil {
		return ""
	}
	return filepath.Dir(folder)
}
