package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// headFault reads MUSTER_FAULT_HEAD, by which tests have a head kill itself:
// STEP:N is the Nth time that it comes to a step (head.Options.Fault), with @EPOCH
// that of a later head of the session. nil: it is to live.
func headFault(text string, epoch uint32) (func(step string), error) {
	if text == "" {
		return nil, nil
	}
	where, which, of := strings.Cut(text, "@")
	step, count, ok := strings.Cut(where, ":")
	n, err := strconv.Atoi(count)
	at := uint64(1)
	if of && err == nil {
		at, err = strconv.ParseUint(which, 10, 32)
	}
	if !ok || err != nil || n < 1 {
		return nil, fmt.Errorf("MUSTER_FAULT_HEAD is %q; it is STEP:N or STEP:N@EPOCH, for tests", text)
	}
	if uint64(epoch) != at {
		return nil, nil
	}
	var seen atomic.Int64
	return func(s string) {
		if s == step && seen.Add(1) == int64(n) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // not one step further
		}
	}, nil
}
