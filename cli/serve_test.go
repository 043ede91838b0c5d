package cli

import (
	"testing"
	"time"
)

func TestSettingsOfAHead(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "off": -1, "30s": 30 * time.Second, "2m": 2 * time.Minute} {
		if got, err := watchAfter(text); got != want || err != nil {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]time.Duration{"": 0, "0.5": time.Second / 2, "7": 7 * time.Second} {
		if got, err := cancelGrace(text); got != want || err != nil {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"30", "0s", "-1s", "soon"} {
		if _, err := watchAfter(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	for _, text := range []string{"0", "-1", "5s", "NaN", "1e9"} {
		if _, err := cancelGrace(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
