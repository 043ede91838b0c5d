package head

import (
	"testing"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// A try is settled once: by its first failure, which may be of a process that was
// done already, or by the last that is done.
func TestTrySettles(t *testing.T) {
	died := spec.Errorf(spec.CodeWorkerDied, "SIGKILL")
	for name, play := range map[string]func(*try, *worker, *worker){
		"both are ready": func(t *try, a, b *worker) {
			t.readyLocked(a, wire.Ready{})
			t.readyLocked(b, wire.Ready{})
		},
		"one is ready and dies, then the other is ready": func(t *try, a, b *worker) {
			t.readyLocked(a, wire.Ready{})
			t.failLocked(died)
			t.readyLocked(b, wire.Ready{})
		},
		"one is initialized and dies, then the other is initialized, and dies": func(t *try, a, b *worker) {
			t.resultLocked(a, nil, nil)
			t.failLocked(died)
			t.resultLocked(b, nil, nil)
			t.failLocked(died)
		},
		"one fails, then both die": func(t *try, a, b *worker) {
			t.resultLocked(a, nil, died)
			t.failLocked(died)
			t.failLocked(died)
		},
	} {
		a, b := &worker{}, &worker{}
		tried := &try{waits: map[*worker]bool{a: true, b: true}, settled: make(chan struct{})}
		play(tried, a, b)
		select {
		case <-tried.settled:
		default:
			t.Errorf("%s: it is not settled", name)
		}
	}
}

// One that is cut off, or has just died, is told to initialize when it is back.
func TestNobodyIsToldToInitializeWhoIsCutOff(t *testing.T) {
	var b batch
	w := &worker{cluster: &cluster{}}
	(&Head{}).sendBeginningLocked(w, &beginning{}, &b)
	if len(b.ports) > 0 {
		t.Error("it was sent something")
	}
}
