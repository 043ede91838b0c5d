// Eight reward verifiers in Go beside Python actors, in one pipeline, driven from
// Go. The same program is the controller and, where a cluster starts it, a
// verifier; verified.py drives the same from Python.
//
//	go run ./examples/go-verifiers -python build/venv/bin/python
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/muster-rl/muster"
	"github.com/muster-rl/muster/worker"
)

const (
	prompts = 64
	steps   = 4
)

func main() {
	if worker.Running() {
		worker.Main(newVerifier)
	}
	python := flag.String("python", "", "an interpreter with the muster package; default: $MUSTER_PYTHON, then python3")
	flag.Parse()
	if err := train(context.Background(), *python); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func train(ctx context.Context, python string) error {
	s, err := muster.Start(ctx, muster.Options{Virtual: "1x4", Python: python})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	actor, verify, err := clusters(ctx, s)
	if err != nil {
		return err
	}
	fmt.Printf("%d Python actors, %d Go verifiers\n", actor.World(), verify.World())

	questions := make([]string, prompts)
	for i := range questions {
		questions[i] = fmt.Sprintf("%d*%d + %d", i+3, i+7, i)
	}
	for step := range steps {
		// The answers go from the actors to the verifiers; the head waits for
		// them, this program does not.
		answers := muster.Go[[]string](ctx, actor, "generate", questions)
		rewards, err := muster.Call[[]float64](ctx, verify, "verify", questions, answers)
		if err != nil {
			return err
		}
		if err := muster.Do(ctx, actor, "update", rewards); err != nil {
			return err
		}
		fmt.Printf("step %d: mean reward %.2f\n", step, mean(rewards))
	}
	return nil
}

func clusters(ctx context.Context, s *muster.Session) (actor, verify *muster.Cluster, err error) {
	pool, err := s.Pool(ctx, 1, 4)
	if err != nil {
		return nil, nil, err
	}
	actor, err = s.Cluster(ctx, muster.ClusterConfig{
		Name: "actor", Class: "actors.Actor", PyModules: []string{here()}, Pool: pool, Devices: "0-3",
	})
	if err != nil {
		return nil, nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	verify, err = s.Cluster(ctx, muster.ClusterConfig{
		Name: "verify", Command: []string{program}, Pool: pool, World: 8,
	})
	return actor, verify, err
}

// here is the folder of this file, where the actors' class is.
func here() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(max(len(xs), 1))
}
