package call

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestScripts runs testdata/*.txt: each line is an event, the indented lines
// below it are the orders it led to. The commands:
//
//	cluster NAME RANKS [serial]
//	call ID CLUSTER.METHOD [ranks=0,1] [split] [apart] [keep] [collective] [idempotent] [on_timeout=kill] [leased] [prepares] [needs=ID,ID/RANK] [in=CLUSTER/RANK:CALL] [waiting]
//	result CLUSTER/RANK CALL [error=CODE]
//	down CLUSTER/RANK,RANK|all · replace CLUSTER/RANK,RANK|all
//	dying CLUSTER/RANK · back CLUSTER/RANK LEGS (it has got so many) · resent CALL · prepared CALL · refused CALL (instead) · lost CLUSTER/RANK · gone CLUSTER · callergone
//	cancel CALL [kill] · overdue CALL · expire CALL · expired CALL · wait CLUSTER/RANK CALL · ack CALL · state
//	takeover [got=CLUSTER/RANK:LEGS,…] [calls=ID,…] [lost=ID,…] [puts=ID,…] [raised=CLUSTER/RANK:CALL,…] [done=CLUSTER/RANK:CALL,…] [late=ID,…] [died=CLUSTER/RANK,…] [away]: a new head; workers have got so many
//	  legs, and have raised in these, or ended them, callers send these again, of which some do not go on, and are late;
//	  some workers have died since
//
// Calls are named by their caller's id, which is also their number here.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := script{table: NewTable(1), clusters: map[string]*Cluster{}, epoch: 1, calls: map[string][]string{}, sent: map[string][]sentLeg{}}
			var out strings.Builder
			for line := range strings.Lines(string(text)) {
				line = strings.TrimRight(line, "\n")
				if strings.HasPrefix(line, "  ") {
					continue // expected output, made anew below
				}
				fmt.Fprintln(&out, line)
				if line != "" && !strings.HasPrefix(line, "#") {
					out.WriteString(s.run(t, line))
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if out.String() != string(text) {
				t.Errorf("%s differs; run with -update to see how:\n%s", file, out.String())
			}
		})
	}
}

type script struct {
	table    *Table
	clusters map[string]*Cluster
	number   uint32
	epoch    uint32
	calls    map[string][]string // lines, by id
	sent     map[string][]sentLeg
	last     []*Leg // those of the last event
}

type sentLeg struct {
	id     ID
	origin uint64
}

func (s *script) run(t *testing.T, line string) string {
	t.Helper()
	f := strings.Fields(line)
	var ops []Op
	switch f[0] {
	case "cluster":
		n, _ := strconv.Atoi(f[2])
		s.number++
		cl := &Cluster{Number: s.number, Name: f[1]}
		for r := range n {
			s.number++
			cl.Workers = append(cl.Workers, &Worker{
				Number: s.number, Rank: r, Name: fmt.Sprintf("%s-%d", f[1], r), Node: "n0", Cluster: cl, Serial: has(f, "serial"),
			})
		}
		s.clusters[f[1]] = cl
	case "call":
		s.calls[f[1]] = f
		_, ops = s.table.Submit(s.request(t, f))
	case "result":
		var r Result
		if code := option(f, "error"); code != "" {
			w := s.worker(t, f[1])
			r.Err = spec.Errorf(spec.Code(code), "%s raised", w.Name)
		}
		_, ops = s.table.Result(s.worker(t, f[1]), s.call(t, f[2]).ID, r)
	case "dying":
		s.table.WorkerDying(s.worker(t, f[1]))
	case "back":
		w := s.worker(t, f[1])
		n, _ := strconv.Atoi(f[2])
		s.sent[w.Name] = s.sent[w.Name][:n]
		ops = s.table.Returned(w, uint32(n))
	case "prepared":
		ops = s.table.Prepared(s.call(t, f[1]))
	case "refused":
		ops = s.table.Refuse(s.call(t, f[1]), spec.Errorf(spec.CodeInvalid, "cannot be cut"))
	case "resent":
		ops = s.table.Resent(s.call(t, f[1]))
	case "takeover":
		ops = s.takeover(t, f)
	case "lost":
		w := s.worker(t, f[1])
		ops = s.table.WorkerLost(w, spec.Errorf(spec.CodeWorkerDied, "%s died", w.Name))
	case "down":
		ranks := s.ranks(t, f[1])
		ops = s.table.WorkersDown(ranks, spec.Errorf(spec.CodeWorkerDied, "%s died", ranks[0].Name))
	case "replace":
		var fresh []*Worker
		for _, w := range s.ranks(t, f[1]) {
			s.number++
			fresh = append(fresh, &Worker{Number: s.number, Rank: w.Rank, Name: w.Name, Node: w.Node, Cluster: w.Cluster, Serial: w.Serial})
		}
		ops = s.table.Replace(fresh)
	case "gone":
		ops = s.table.ClusterGone(s.clusters[f[1]], spec.Errorf(spec.CodeWorkerDied, "%s is no more", f[1]))
	case "callergone":
		ops = s.table.CallerGone(1)
	case "cancel":
		ops = s.table.Cancel(s.call(t, f[1]), len(f) > 2 && f[2] == "kill")
	case "overdue":
		ops = s.table.Overdue(s.call(t, f[1]), nil)
	case "expire":
		ops = s.table.Expire(s.call(t, f[1]))
	case "expired":
		ops = s.table.Expired(s.call(t, f[1]), "2s", nil)
	case "wait":
		ops = s.table.Wait(s.worker(t, f[1]), s.call(t, f[2]), has(f, "whole"))
	case "ack":
		ops = s.table.Acked(s.call(t, f[1]))
	case "refuse": // it was not sent after all
		for _, l := range s.last {
			l.Out = false
			l.Worker.acks.sent--
			s.sent[l.Worker.Name] = s.sent[l.Worker.Name][:l.Worker.acks.sent]
		}
		ops = s.table.Refuse(s.call(t, f[1]), spec.Errorf(spec.CodeInvalid, "cannot be cut"))
	case "state":
		return fmt.Sprintf("  %d calls\n", s.table.Len())
	default:
		t.Fatalf("unknown command %q", line)
	}
	text := show(ops)
	s.carryOut(ops)
	return text
}

// carryOut notes what workers were sent.
func (s *script) carryOut(ops []Op) {
	s.last = s.last[:0]
	for _, op := range ops {
		for i := range op.Call.Legs {
			if op.Do == Send || ((op.Do == SendLeg || op.Do == SendAgain) && i == op.Leg) {
				op.Call.Sent(i)
				s.last = append(s.last, &op.Call.Legs[i])
				name := op.Call.Legs[i].Worker.Name
				s.sent[name] = append(s.sent[name], sentLeg{op.Call.ID, op.Call.Origin()})
			}
		}
	}
}

// takeover makes a new head, to which workers and callers come back.
func (s *script) takeover(t *testing.T, f []string) []Op {
	t.Helper()
	s.epoch++
	s.table = NewTable(s.epoch)
	for _, cl := range s.clusters {
		cl.held, cl.full = nil, 0
		for i, old := range cl.Workers {
			cl.Workers[i] = &Worker{Number: old.Number, Rank: i, Name: old.Name, Node: old.Node, Cluster: cl, Serial: old.Serial, Dead: old.Dead}
		}
	}
	back := s.table.Comeback()
	words := func(name string) []string {
		return strings.FieldsFunc(option(f, name), func(r rune) bool { return r == ',' })
	}
	for _, text := range words("got") {
		who, legs, _ := strings.Cut(text, ":")
		w := s.worker(t, who)
		n, _ := strconv.Atoi(legs)
		s.sent[w.Name] = s.sent[w.Name][:n]
		back.Received(w, uint32(n))
		for i, l := range s.sent[w.Name] {
			back.Got(w, uint32(i+1), l.id, l.origin)
		}
	}
	for _, text := range words("puts") {
		id, _ := strconv.ParseUint(text, 10, 64)
		s.table.PutAnswer(1, id, -1, Result{})
	}
	for _, text := range words("calls") {
		if r := s.request(t, s.calls[text]); slices.Contains(words("lost"), text) {
			back.Refused(r)
		} else {
			back.Call(r)
		}
	}
	ops := slices.Clone(back.Prepare(func(uint32) bool { return !has(f, "away") }, func(c *Call) { c.Method = "?" }))
	for _, text := range words("raised") {
		who, id, _ := strings.Cut(text, ":")
		w := s.worker(t, who)
		_, more := s.table.Result(w, s.call(t, id).ID, Result{Err: spec.Errorf(spec.CodeUser, "%s raised", w.Name)})
		ops = append(ops, more...)
	}
	for _, text := range words("done") {
		who, id, _ := strings.Cut(text, ":")
		_, more := s.table.Result(s.worker(t, who), s.call(t, id).ID, Result{})
		ops = append(ops, more...)
	}
	for _, text := range words("late") {
		ops = append(ops, s.table.Expire(s.call(t, text))...)
	}
	for _, text := range words("died") {
		w := s.worker(t, text)
		ops = append(ops, s.table.WorkerLost(w, spec.Errorf(spec.CodeWorkerDied, "%s died", w.Name))...)
	}
	for _, op := range ops {
		if op.Do == Send || op.Do == SendLeg || op.Do == SendAgain {
			t.Errorf("%s: call %d goes out before all is known", strings.Join(f, " "), op.Call.CallerID)
		}
	}
	return append(ops, back.Go()...)
}

func show(ops []Op) string {
	names := [...]string{"send", "send leg", "answer", "fail", "answer leg", "fail leg", "cancel leg", "kill leg", "stacks", "send again", "again", "release", "forget", "prepare"}
	var out strings.Builder
	for _, op := range ops {
		fmt.Fprintf(&out, "  %s %d", names[op.Do], op.Call.CallerID)
		if op.Leg >= 0 {
			fmt.Fprintf(&out, " %s", op.Call.Legs[op.Leg].Worker.Name)
		}
		if op.Err != nil {
			fmt.Fprintf(&out, ": %s: %s", op.Err.Code, op.Err.Message)
		}
		out.WriteString("\n")
	}
	return out.String()
}

func (s *script) request(t *testing.T, f []string) Request {
	id, _ := strconv.ParseUint(f[1], 10, 64)
	name, method, _ := strings.Cut(f[2], ".")
	r := Request{
		Caller: 1, CallerID: id, Cluster: s.clusters[name], Method: method,
		Split: has(f, "split"), Apart: has(f, "apart"), Keep: has(f, "keep"), Collective: has(f, "collective"), Idempotent: has(f, "idempotent"),
		OnTimeout: option(f, "on_timeout"), Waiting: has(f, "waiting"), Whole: has(f, "whole"), Leased: has(f, "leased"), Prepares: has(f, "prepares"),
	}
	for _, text := range strings.FieldsFunc(option(f, "ranks"), func(r rune) bool { return r == ',' }) {
		rank, _ := strconv.Atoi(text)
		r.Ranks = append(r.Ranks, rank)
	}
	for _, text := range strings.FieldsFunc(option(f, "needs"), func(r rune) bool { return r == ',' }) {
		name, of, one := strings.Cut(text, "/")
		dep, _ := strconv.ParseUint(name, 10, 64)
		rank, _ := strconv.Atoi(of)
		if !one {
			rank = -1
		}
		r.Futures = append(r.Futures, Future{CallerID: dep, Rank: rank})
	}
	if has(f, "paired") { // leg i needs leg i of each
		for range r.Futures {
			legs := make([]int, len(r.Cluster.Workers))
			for i := range legs {
				legs[i] = i
			}
			r.Paired = append(r.Paired, legs)
		}
	}
	if in := option(f, "in"); in != "" {
		worker, parent, _ := strings.Cut(in, ":")
		r.ParentWorker, r.Parent = s.worker(t, worker), s.call(t, parent).ID
	}
	return r
}

func (s *script) worker(t *testing.T, text string) *Worker {
	t.Helper()
	name, rank, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(rank)
	if err != nil || s.clusters[name] == nil {
		t.Fatalf("no worker %q", text)
	}
	return s.clusters[name].Workers[n]
}

// ranks reads CLUSTER/RANK,RANK or CLUSTER/all.
func (s *script) ranks(t *testing.T, text string) []*Worker {
	t.Helper()
	name, list, _ := strings.Cut(text, "/")
	if list == "all" {
		return append([]*Worker(nil), s.clusters[name].Workers...)
	}
	var workers []*Worker
	for _, rank := range strings.Split(list, ",") {
		workers = append(workers, s.worker(t, name+"/"+rank))
	}
	return workers
}

func (s *script) call(t *testing.T, text string) *Call {
	t.Helper()
	id, _ := strconv.ParseUint(text, 10, 64)
	if c := s.table.FindCaller(1, id); c != nil {
		return c
	}
	return &Call{ID: 1 << 60, State: Answered} // gone: events about it must do nothing
}

func has(f []string, word string) bool {
	for _, x := range f {
		if x == word {
			return true
		}
	}
	return false
}

func option(f []string, name string) string {
	for _, x := range f {
		if v, ok := strings.CutPrefix(x, name+"="); ok {
			return v
		}
	}
	return ""
}
