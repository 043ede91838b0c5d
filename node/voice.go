package node

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Voice says how it goes: lines for people, or JSON for programs.
type Voice struct {
	mu    sync.Mutex
	out   io.Writer
	json  bool
	rank  int
	start time.Time
}

// NewVoice speaks for a rank.
func NewVoice(out io.Writer, asJSON bool, rank int) *Voice {
	return &Voice{out: out, json: asJSON, rank: rank, start: time.Now()}
}

// said is one line of JSON.
type said struct {
	Event   string  `json:"event"`
	Rank    int     `json:"rank"`
	Seconds float64 `json:"seconds"` // since the start
	Text    string  `json:"text,omitempty"`
	Code    *int    `json:"code,omitempty"`
	Value   any     `json:"value,omitempty"`
}

// Say tells of one thing.
func (v *Voice) Say(event, text string, value any) {
	v.print(said{Event: event, Text: text, Value: value})
}

// End tells of the end. It is the last line, and there is one.
func (v *Voice) End(code int, reason string) {
	if !v.json && reason == "" {
		return
	}
	v.print(said{Event: "end", Text: reason, Code: &code})
}

func (v *Voice) print(s said) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.json {
		fmt.Fprintf(v.out, "muster: %s\n", s.Text)
		return
	}
	s.Rank = v.rank
	s.Seconds = float64(time.Since(v.start).Milliseconds()) / 1000
	line, err := json.Marshal(s)
	if err == nil {
		_, _ = v.out.Write(append(line, '\n'))
	}
}

// quoted is a command line for people: words that hold more than a shell would
// take for one word stand in quotes.
func quoted(words []string) string {
	plain := func(c rune) bool {
		return c < 0x7f && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_./=:,@%+[]()", c))
	}
	var all []string
	for _, w := range words {
		if w == "" || strings.ContainsFunc(w, func(c rune) bool { return !plain(c) }) {
			w = strconv.Quote(w)
		}
		all = append(all, w)
	}
	return strings.Join(all, " ")
}
