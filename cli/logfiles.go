package cli

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// logFile is what one worker printed.
type logFile struct {
	cluster string
	worker  string
	rank    int
	path    string
}

// findLogs returns the files of those named, of all clusters where none is, by
// cluster and rank. Every target must have at least one.
func findLogs(dir string, targets []target) ([]logFile, error) {
	all, others := allLogs(dir)
	if len(targets) == 0 {
		return all, nil
	}
	var found []logFile
	for _, t := range targets {
		of := slices.DeleteFunc(slices.Clone(all), func(f logFile) bool { return !t.has(f) })
		if i := slices.IndexFunc(others, func(f logFile) bool { return f.worker == t.name }); i >= 0 && len(of) == 0 {
			of = others[i : i+1]
		}
		if len(of) == 0 {
			return nil, t.missing(all)
		}
		found = append(found, of...)
	}
	return found, nil
}

// has says that a target means this file: by cluster and rank, or by worker.
func (t target) has(f logFile) bool {
	if t.name == f.worker && len(t.ranks) == 0 {
		return true
	}
	return t.name == f.cluster && (len(t.ranks) == 0 || slices.Contains(t.ranks, f.rank))
}

func (t target) missing(all []logFile) error {
	var clusters, names []string
	var ranks []int
	for _, f := range all {
		clusters, names = append(clusters, f.cluster), append(names, f.worker)
		if f.cluster == t.name {
			ranks = append(ranks, f.rank)
		}
	}
	if len(ranks) > 0 {
		return nothing("cluster %s has no rank %s; it has %s", t.name, spec.Spans(t.ranks), spec.Spans(ranks))
	}
	// A worker that is misspelt is offered only where no cluster is nearer.
	err := noSuch("cluster or worker", t.name, clusters)
	if near := noSuch("cluster or worker", t.name, slices.Concat(clusters, names)); strings.Contains(near.Error(), "did you mean") {
		return near
	}
	return err
}

// allLogs lists the workers' files, and those of Muster's own processes.
func allLogs(dir string) (workers, others []logFile) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".log"); ok && !e.IsDir() {
			others = append(others, logFile{worker: name, path: filepath.Join(dir, e.Name())})
			continue
		}
		files, _ := os.ReadDir(filepath.Join(dir, e.Name()))
		for _, file := range files {
			if name, ok := strings.CutSuffix(file.Name(), ".log"); ok {
				workers = append(workers, logFile{e.Name(), name, rankOf(e.Name(), name), filepath.Join(dir, e.Name(), file.Name())})
			}
		}
	}
	slices.SortStableFunc(workers, func(a, b logFile) int {
		return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.rank, b.rank), cmp.Compare(a.worker, b.worker))
	})
	return workers, others
}

// rankOf reads a worker's name: {cluster}-{rank} and perhaps -G{devices}.
func rankOf(cluster, worker string) int {
	rank, _, _ := strings.Cut(strings.TrimPrefix(worker, cluster+"-"), "-")
	n, err := strconv.Atoi(rank)
	if err != nil {
		return -1
	}
	return n
}
