package head

import "errors"

// fault tells a test how far the head is; it may end it there.
func (h *Head) fault(step string) {
	if h.opts.Fault != nil {
		h.opts.Fault(step)
	}
}

// Crash ends the head as a kill would, as far as one process can: its connections
// are cut, with what was on its way, and nobody is told anything. For tests.
func (h *Head) Crash() {
	h.connsMu.Lock()
	defer h.connsMu.Unlock()
	if h.crashed.Swap(true) {
		return
	}
	_ = h.listener.Close()
	h.far.close()
	for c := range h.conns {
		c.Cut()
	}
	close(h.crash)
}

// fall ends what would go on in this process alone.
func (h *Head) fall() error {
	h.end("it crashed")
	h.mu.Lock()
	for _, c := range h.callers {
		c.cancel()
	}
	h.mu.Unlock()
	h.serving.Wait()
	h.closeLanes()
	return errCrashed
}

// errCrashed is what Run of a head returns that was ended so.
var errCrashed = errors.New("the head was made to end like one that is killed")
