package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

func run() error {
	role := flag.String("role", "", "used by the program itself: head or nodes")
	sizes := flag.String("sizes", "10,100,1000,10000", "numbers of workers")
	rounds := flag.Int("rounds", 0, "calls per measurement; 0: by size, 100 to 500")
	out := flag.String("out", "build/bench", "folder for sim.json and sim.svg")
	profile := flag.String("profile", "", "folder for CPU profiles of the head, one per size")
	perNode := flag.Int("per-node", 8, "workers a node")
	repeats := flag.Int("repeats", 3, "runs of every size, interleaved")
	check := flag.Bool("check", false, "fail where costs per worker grow beyond the bounds")
	flag.Parse()
	switch *role {
	case "head":
		return runHead(*profile)
	case "nodes":
		return runNodes()
	case "":
	default:
		return fmt.Errorf("there is no role %q", *role)
	}

	report := Report{Machine: machine()}
	runs := map[int][]*Size{}
	order := []int{}
	for _, text := range strings.Split(*sizes, ",") {
		workers, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || workers < 1 {
			return fmt.Errorf("-sizes: %q is no number of workers", text)
		}
		order = append(order, workers)
	}
	for i := range max(*repeats, 1) {
		for _, workers := range order {
			fmt.Fprintf(os.Stderr, "run %d: %d workers\n", i+1, workers)
			size, err := measure(workers, max(*perNode, 1), *rounds, profileOf(*profile, workers))
			if err != nil {
				return fmt.Errorf("%d workers: %w", workers, err)
			}
			runs[workers] = append(runs[workers], size)
		}
	}
	for _, workers := range order {
		report.Sizes = append(report.Sizes, together(runs[workers]))
	}
	report.judge()
	report.print(os.Stdout)
	if err := report.write(*out); err != nil {
		return err
	}
	if *check && len(report.Failed) > 0 {
		return errors.New(strings.Join(report.Failed, "; "))
	}
	return nil
}

func profileOf(folder string, workers int) string {
	if folder == "" {
		return ""
	}
	return filepath.Join(folder, fmt.Sprintf("sim-%d.pprof", workers))
}

// write leaves sim.json and sim.svg in a folder.
func (r *Report) write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(folder, "sim.json"), append(text, '\n'), 0o644),
		os.WriteFile(filepath.Join(folder, "sim.svg"), []byte(plot(r)), 0o644),
	)
}
