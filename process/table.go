package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Entry is one process as /proc tells it.
type Entry struct {
	Pid     int
	Parent  int
	Name    string // the kernel's short name
	State   byte   // R, S, D, Z, T …
	Started uint64 // ticks since boot: tells a pid from its next use
}

// Gone says that an entry is only waiting to be reaped.
func (e Entry) Gone() bool { return e.State == 'Z' || e.State == 'X' }

// Read returns the entry of one process.
func Read(pid int) (Entry, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Entry{}, err
	}
	return parseStat(b)
}

// Scan returns every process of the machine (of this pid namespace).
func Scan() ([]Entry, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	var entries []Entry
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		e, err := Read(pid)
		switch {
		case err == nil:
			entries = append(entries, e)
		case os.IsNotExist(err), isGone(err):
			// It ended while we looked.
		default:
			return nil, fmt.Errorf("cannot read process %d: %w", pid, err)
		}
	}
	return entries, nil
}

// parseStat reads a line of /proc/PID/stat. The name stands in parentheses and
// may hold anything, parentheses and newlines too, so it ends at the last one.
func parseStat(b []byte) (Entry, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return Entry{}, fmt.Errorf("malformed /proc stat line %q", b)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	rest := bytes.Fields(b[end+1:])
	if err != nil || len(rest) < 20 || len(rest[0]) != 1 {
		return Entry{}, fmt.Errorf("malformed /proc stat line %q", b)
	}
	parent, err := strconv.Atoi(string(rest[1]))
	if err != nil {
		return Entry{}, fmt.Errorf("malformed /proc stat line %q", b)
	}
	started, err := strconv.ParseUint(string(rest[19]), 10, 64)
	if err != nil {
		return Entry{}, fmt.Errorf("malformed /proc stat line %q", b)
	}
	return Entry{Pid: pid, Parent: parent, Name: string(b[open+1 : end]), State: rest[0][0], Started: started}, nil
}

// Below returns the entries whose chain of parents leads to one of roots, the
// roots among them first.
func Below(entries []Entry, roots func(Entry) bool) []Entry {
	children := make(map[int][]Entry, len(entries))
	var out []Entry
	for _, e := range entries {
		if roots(e) {
			out = append(out, e)
		} else {
			children[e.Parent] = append(children[e.Parent], e)
		}
	}
	for i := 0; i < len(out); i++ {
		out = append(out, children[out[i].Pid]...)
		delete(children, out[i].Pid)
	}
	return out
}

// Descendants returns every living process below pid.
func Descendants(pid int) ([]Entry, error) {
	entries, err := Scan()
	if err != nil {
		return nil, err
	}
	living := entries[:0]
	for _, e := range Below(entries, func(e Entry) bool { return e.Parent == pid }) {
		if !e.Gone() {
			living = append(living, e)
		}
	}
	return living, nil
}
