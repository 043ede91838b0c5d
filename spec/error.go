package spec

import "strings"

// Code tells kinds of errors apart across every boundary; each is an exception
// class in Python (python/muster/_errors.py) and a target of errors.Is in Go.
type Code string

// The codes. Their strings are part of the wire.
const (
	CodeUser       Code = "user"        // raised by the user's code in a worker
	CodeWorkerDied Code = "worker_died" // a worker's process ended
	CodeNodeLost   Code = "node_lost"   // an agent ended or is out of reach
	CodeHeadLost   Code = "head_lost"   // the head ended (made by SDKs, never sent)
	CodeTimeout    Code = "timeout"     // a deadline passed
	CodeCancelled  Code = "cancelled"   // cancelled by its caller, or with its call
	CodeDeadlock   Code = "deadlock"    // a wait would close a cycle
	CodeTainted    Code = "tainted"     // the worker had an exception injected
	CodeInvalid    Code = "invalid"     // a bad argument: ValueError
	CodeTaken      Code = "taken"       // a name that a living service has: ValueError
	CodeType       Code = "type"        // a bad argument: TypeError
	CodeNotFound   Code = "not_found"   // no such cluster, method, pool: LookupError
	CodePlacement  Code = "placement"   // cannot be placed: ValueError
	CodeResources  Code = "resources"   // not there, or held by others
	CodeImport     Code = "import"      // a class that cannot be imported: ImportError
	CodeStartup    Code = "startup"     // a worker did not become ready
	CodeLayout     Code = "layout"      // an impossible rank layout was reported
	CodeEncoding   Code = "encoding"    // a value that cannot be encoded or decoded: TypeError
	CodeTooLarge   Code = "too_large"   // a frame over the limit
	CodeProtocol   Code = "protocol"    // a malformed frame, a wrong version
	CodeAuth       Code = "auth"        // a wrong or missing token
	CodeLimit      Code = "limit"       // open files, memory, disk
	CodeStoreFull  Code = "store_full"  // a node's store has no room: MemoryError
	CodeInternal   Code = "internal"    // a bug of ours
)

// Error is the one error that crosses process boundaries. Message says what
// happened, what was expected and what to do; the other fields say where.
type Error struct {
	Code      Code     `msg:"code"`
	Message   string   `msg:"message"`
	Cluster   string   `msg:"cluster,omitempty"`
	Method    string   `msg:"method,omitempty"`
	Rank      int      `msg:"rank"` // -1 where no rank is meant
	Worker    string   `msg:"worker,omitempty"`
	Node      string   `msg:"node,omitempty"`
	Device    string   `msg:"device,omitempty"`    // of a worker that died: "GPU 3"
	Traceback string   `msg:"traceback,omitempty"` // remote traceback, for people
	Exception []byte   `msg:"exception,omitempty"` // a value: the exception itself
	Logs      []string `msg:"logs,omitempty"`      // the worker's last lines
	Stacks    []Stack  `msg:"stacks,omitempty"`    // at a deadline: who had not answered, and where they were
	ExitCode  int      `msg:"exit_code"`           // of a worker that died, else 0
	Signal    string   `msg:"signal,omitempty"`    // "SIGKILL", of a worker that died
	Others    []string `msg:"others,omitempty"`    // what the other ranks were doing when it died
	// Groups has all ranks that were asked for stacks, by the place they are at.
	Groups []StackGroup `msg:"groups,omitempty"`
}

// Error tells it all on as many lines as it takes.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	logs := strings.Join(e.Logs, "\n")
	if trace := strings.TrimRight(e.Traceback, "\n"); trace != "" && !strings.Contains(logs, trace) {
		b.WriteString("\n\n" + trace)
	}
	if len(e.Others) > 0 {
		b.WriteString("\n\nwhat the others were doing:\n  " + strings.Join(e.Others, "\n  "))
	}
	b.WriteString(e.stacksText())
	if len(e.Logs) > 0 {
		b.WriteString("\n\nlast lines of " + e.Worker + ":\n  " + strings.Join(e.Logs, "\n  "))
	}
	return b.String()
}

// Is makes errors.Is(err, &Error{Code: c}) compare codes alone.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}
