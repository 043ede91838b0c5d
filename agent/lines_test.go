package agent

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func split(parts ...string) []string {
	var got []string
	s := splitter{emit: func(line string) { got = append(got, line) }}
	for _, p := range parts {
		s.write(time.Unix(100, 0), []byte(p))
	}
	s.close()
	return got
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want string
	}{
		{[]string{"a\nb\n"}, "a|b"},
		{[]string{"a", "b\nc"}, "ab|c"},
		{[]string{"a\r\nb\r\n"}, "a|b"},
		{[]string{"a\r", "\nb"}, "a|b"},
		{[]string{"10%\r20%\r30%\n"}, "30%"},
		{[]string{"\r10%\r20%"}, "20%"},
		{[]string{"done\r"}, "done"},
		{[]string{"\n\na\n"}, "||a"},
		{nil, ""},
	} {
		if got := strings.Join(split(c.in...), "|"); got != c.want {
			t.Errorf("%q gave %q, want %q", c.in, got, c.want)
		}
	}
}

func TestProgressIsSeenToMove(t *testing.T) {
	var got []string
	s := splitter{emit: func(line string) { got = append(got, line) }}
	for i := range 12 {
		s.write(time.Unix(int64(i), 0), []byte{'\r', byte('a' + i)})
	}
	s.close()
	if want := "e|j|l"; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLongLinesAreCut(t *testing.T) {
	text := strings.Repeat("é", 70_000) // 140,000 bytes
	got := split(text[:5], text[5:]+"\nnext\n")
	if len(got) != 4 || got[3] != "next" {
		t.Fatalf("got %d lines", len(got))
	}
	joined := ""
	for i, line := range got[:3] {
		if !utf8.ValidString(line) || len(line) > longestLine+8 {
			t.Errorf("piece %d is broken: %d bytes", i, len(line))
		}
		if strings.HasSuffix(line, cutMark) != (i < 2) || strings.HasPrefix(line, goesOnMark) != (i > 0) {
			t.Errorf("piece %d has the wrong marks", i)
		}
		joined += strings.TrimPrefix(strings.TrimSuffix(line, cutMark), goesOnMark)
	}
	if joined != text {
		t.Error("bytes were lost")
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext":         "plain\ttext",
		"grün …":              "grün …",
		"\xff\x00\x1b[2Jx":    `\xff\x00\x1b[2Jx`,
		"\x1b[31mred\x1b[0m":  "\x1b[31mred\x1b[0m",
		"\x1b[1;31mred":       "\x1b[1;31mred\x1b[0m",
		"\x1b[31":             `\x1b[31`,
		"\x1b]0;title\x07":    `\x1b]0;title\x07`,
		"\u202eevil":          `\u202eevil`,
		"\u0085next":          `\x85next`,
		"del\x7f":             `del\x7f`,
		"\xe2\x82":            `\xe2\x82`,
		"half \xf0\x9f\x98 x": `half \xf0\x9f\x98 x`,
	} {
		if got := Escape([]byte(in)); got != want {
			t.Errorf("%q gave %q, want %q", in, got, want)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\r\nb\xff\x1b[3"), 2)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		cut = min(max(cut, 0), len(b))
		for _, line := range split(string(b[:cut]), string(b[cut:])) {
			if !utf8.ValidString(line) || strings.ContainsAny(line, "\n\r\x00") {
				t.Fatalf("%q is not fit to be shown", line)
			}
		}
	})
}
