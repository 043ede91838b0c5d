package course

import (
	"fmt"
	"time"
)

// Limits are how long things may take.
type Limits struct {
	Join     time.Duration // until all that are needed have joined
	Stop     time.Duration // that the command may take to end after a signal
	Farewell time.Duration // that the leader waits for the others to hear of the end
	Silence  time.Duration // without an answer after which the other side is given up
	Refused  int           // so many refused connections in a row mean the same
}

// Do is what an order asks for.
type Do int

// The orders.
const (
	StartRay      Do = iota // Address: of the head to join, "" for the head itself
	StartCommand            //
	SignalCommand           // Number
	KillCommand             //
	StopRay                 //
	TellLeader              // that this replica leaves: once more, before the end
	Say                     // Event, Text: for people and programs
	Exit                    // Code, Text: why, "" at an orderly end
)

// Order is one thing to do.
type Order struct {
	Do      Do
	Address string
	Number  int
	Code    int
	Event   string
	Text    string
}

// Phase is how far the leader is, as it tells the others.
type Phase string

// The leader's phases.
const (
	Starting  Phase = "starting"
	Gathering Phase = "gathering"
	Running   Phase = "running"
	Ended     Phase = "ended"
)

// State is how far a replica is, as it tells the leader.
type State string

// A replica's states. Left means that it knows of the end.
const (
	Seeking State = "seeking"
	Joining State = "joining"
	Joined  State = "joined"
	Left    State = "left"
	Failed  State = "failed"
	Lost    State = "lost" // the leader's word for one that is silent
)

// Notice is what the leader tells every replica.
type Notice struct {
	Leader  string `json:"leader"` // which run of it: another one is not the one that was joined
	Phase   Phase  `json:"phase"`
	Ray     string `json:"ray,omitempty"` // the address to join
	Joined  int    `json:"joined"`
	Need    int    `json:"need"`
	Code    int    `json:"code,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Release string `json:"release,omitempty"`
}

// slowly is said of a Ray that gave its own start up.
const slowly = "Ray did not start within the time that it allows itself: this host is slow, or busy. It is started again"

// again is how often the same progress is said.
const again = 30 * time.Second

func say(event, format string, args ...any) Order {
	return Order{Do: Say, Event: event, Text: fmt.Sprintf(format, args...)}
}

// span is a time for people.
func span(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()+0.5))
	}
	return fmt.Sprintf("%.3g min", d.Minutes())
}

// signalled is the code that a shell shows for a signal.
func signalled(number int) int { return 128 + number }
