package session

import (
	"os"
	"strconv"
	"time"
)

// headGrace is how long agents, workers and controllers wait for a head that is
// gone, unless MUSTER_HEAD_GRACE says otherwise.
const headGrace = 30 * time.Second

// HeadGrace is how long those below and above a head wait for it to come back.
// MUSTER_HEAD_GRACE, in seconds, goes from the head to its agents and workers.
func HeadGrace() time.Duration {
	seconds, err := strconv.ParseFloat(os.Getenv("MUSTER_HEAD_GRACE"), 64)
	if err != nil || seconds < 0 || seconds > 1e6 {
		return headGrace
	}
	return time.Duration(seconds * float64(time.Second))
}
