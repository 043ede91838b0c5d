package head

import (
	"strings"
	"testing"
)

func TestLastTraceback(t *testing.T) {
	const one = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    g()\nValueError: no"
	const two = one + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + "Traceback (most recent call last):\n  File \"b.py\", line 2, in h\nKeyError: 'x'"
	const fatal = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File \"c.py\", line 3 in k"
	for name, test := range map[string]struct{ printed, want string }{
		"none":       {"hello\nworld", ""},
		"empty":      {"", ""},
		"one":        {"hello\n" + one + "\nbye", one},
		"last":       {two + "\nagain\n" + one, one},
		"chained":    {"hello\n" + two + "\nbye", two},
		"fatal":      {one + "\n" + fatal, fatal},
		"cut off":    {"Traceback (most recent call last):\n  File \"a.py\", line 1", "Traceback (most recent call last):\n  File \"a.py\", line 1"},
		"link alone": {one + "\n\nDuring handling of the above exception, another exception occurred:", one},
	} {
		if got := lastTraceback(strings.Split(test.printed, "\n")); got != test.want {
			t.Errorf("%s:\n%s\nwanted:\n%s", name, got, test.want)
		}
	}
}
