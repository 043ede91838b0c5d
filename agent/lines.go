package agent

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// longestLine is where a line is cut; what follows is a line of its own.
	longestLine = 64 << 10
	// progressEvery is how often a line that is drawn over with \r is shown.
	progressEvery = 5 * time.Second
	cutMark       = " …"
	goesOnMark    = "… "
)

// splitter cuts a stream into lines. A line that ends in \r alone is about to
// be drawn over, as progress bars do: of those only the last state is a line,
// and one every progressEvery, so that a long bar is seen to move.
type splitter struct {
	emit     func(line string)
	line     []byte
	over     bool // the line's text is drawn over by what comes next
	goesOn   bool // the line's first part was emitted already
	progress time.Time
}

// write takes the next bytes of the stream, read at a time.
func (s *splitter) write(now time.Time, p []byte) {
	if s.progress.IsZero() {
		s.progress = now
	}
	for len(p) > 0 {
		n := bytes.IndexAny(p, "\r\n")
		text := p
		if n >= 0 {
			text = p[:n]
		}
		if len(text) > 0 && s.over {
			s.drawnOver(now)
		}
		s.append(text)
		if n < 0 {
			return
		}
		if p[n] == '\n' {
			s.end()
		} else if len(s.line) > 0 {
			s.over = true
		}
		p = p[n+1:]
	}
}

// close emits what has no newline.
func (s *splitter) close() {
	if len(s.line) > 0 {
		s.end()
	}
}

func (s *splitter) end() {
	s.put(s.line, "")
	s.line, s.over, s.goesOn = s.line[:0], false, false
}

func (s *splitter) drawnOver(now time.Time) {
	if now.Sub(s.progress) >= progressEvery {
		s.put(s.line, "")
		s.progress = now
	}
	s.line, s.over, s.goesOn = s.line[:0], false, false
}

// append adds to the line, and emits pieces of it while it is too long.
func (s *splitter) append(text []byte) {
	for len(s.line)+len(text) > longestLine {
		room := longestLine - len(s.line)
		s.line = append(s.line, text[:room]...)
		text = text[room:]
		cut := wholeRunes(s.line)
		s.put(s.line[:cut], cutMark)
		s.line = append(s.line[:0], s.line[cut:]...)
		s.goesOn = true
	}
	s.line = append(s.line, text...)
}

func (s *splitter) put(line []byte, mark string) {
	text := Escape(line) + mark
	if s.goesOn {
		text = goesOnMark + text
	}
	s.emit(text)
}

// wholeRunes is how much of b can be cut off without cutting a rune in two.
func wholeRunes(b []byte) int {
	for back := 1; back < utf8.UTFMax && back < len(b); back++ {
		if at := len(b) - back; utf8.RuneStart(b[at]) {
			if !utf8.FullRune(b[at:]) {
				return at
			}
			break
		}
	}
	return len(b)
}

// Escape makes a line safe to show: what is not UTF-8, controls, and the marks
// that turn the direction of text become \xNN or \uNNNN. Tabs and colours stay,
// and colours end with the line.
func Escape(line []byte) string {
	if plain(line) {
		return string(line)
	}
	var b strings.Builder
	coloured := false
	for len(line) > 0 {
		if n := colour(line); n > 0 {
			b.Write(line[:n])
			coloured = !bytes.Equal(line[:n], []byte("\x1b[0m")) && !bytes.Equal(line[:n], []byte("\x1b[m"))
			line = line[n:]
			continue
		}
		r, n := utf8.DecodeRune(line)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, line[0])
		case r == '\t':
			b.WriteRune(r)
		case r < 0xa0 && unicode.IsControl(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		case unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.Write(line[:n])
		}
		line = line[n:]
	}
	if coloured {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}

// plain says that nothing needs escaping, which is nearly always so.
func plain(line []byte) bool {
	for _, c := range line {
		if (c < ' ' && c != '\t') || c >= 0x7f {
			return false
		}
	}
	return true
}

// colour is the length of the colour sequence (SGR) that line starts with, or 0.
func colour(line []byte) int {
	if len(line) < 3 || line[0] != 0x1b || line[1] != '[' {
		return 0
	}
	for i := 2; i < len(line) && i < 32; i++ {
		switch c := line[i]; {
		case c == 'm':
			return i + 1
		case c != ';' && c != ':' && (c < '0' || c > '9'):
			return 0
		}
	}
	return 0
}
