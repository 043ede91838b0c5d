package muster_test

import (
	"regexp"
	"strings"
	"testing"
)

// The machine's clock jumps: at a suspend, by NTP, by hand. So durations and
// deadlines are of the monotonic clock, which time.Now carries along, and no
// process tells another a time of day to compare with its own. The few places
// that read the time of day, or drop the monotonic one, are here, with why that
// can do no harm.
var timesOfDay = map[string]string{
	"agent/logs.go: time.Unix(":          "a deadline that is over, whatever the time",
	"session.go: time.Unix(":             "a deadline that is over, whatever the time",
	"session/session.go: time.Parse(":    "whether a folder's name is one of ours",
	"session/session.go: .ModTime(":      "the order in which sessions are listed",
	"session/remains.go: .ModTime(":      "what nobody holds a lock on any more, and nobody can ask, is cleared after a day",
	"head/budget.go: .UnixNano(":         "when ranks were restarted, for the next head: a jump makes the budget larger or smaller once",
	"head/budget.go: time.Unix(":         "the same",
	"head/journal.go: .UnixNano(":        "since when a session is there, for people and the next head",
	"head/resume.go: time.Unix(":         "the same",
	"cli/store.go: .UnixNano(":           "how old an object is, for people",
	"store/store.go: .UnixNano(":         "since when an object is there, for people",
	"python/muster/_arrow.py: datetime.": "the types of values that a user has in columns",
	"secure/authority.go: time.Date(":    "certificates without an end of their own, whatever the clocks of nodes say",
}

var (
	goTimes     = regexp.MustCompile(`time\.(?:Unix|UnixMilli|UnixMicro|Parse|ParseInLocation|Date)\(|\.(?:Unix|UnixNano|UnixMilli|UnixMicro|ModTime|UTC|Local)\(\)|\.Round\(0\)`)
	pythonTimes = regexp.MustCompile(`\btime\.(?:time|time_ns|localtime|gmtime|ctime)\(|\bdatetime\.|\bCLOCK_REALTIME\b|\bst_[mc]time\b|getmtime\(`)
)

func TestDurationsAreNotOfTheTimeOfDay(t *testing.T) {
	for _, f := range sources(t, ".go", ".py") {
		pattern := goTimes
		if strings.HasSuffix(f.path, ".py") {
			pattern = pythonTimes
		}
		if strings.HasSuffix(f.path, "_test.go") || !strings.HasSuffix(f.path, ".go") && !strings.HasPrefix(f.path, "python/muster/") {
			continue
		}
		for _, found := range pattern.FindAllString(f.text, -1) {
			key := f.path + ": " + strings.TrimSuffix(found, ")")
			if timesOfDay[key] == "" {
				t.Errorf("%s reads the time of day, which jumps: take durations from time.Since and time.monotonic, or say in clock_test.go why it does no harm", key)
			}
		}
	}
}
