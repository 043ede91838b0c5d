package cli

import (
	"strings"
	"testing"
	"time"
)

func TestNetworkOptions(t *testing.T) {
	read := func(host, transport, grace string) (network, error) {
		env := map[string]string{"MUSTER_HOST": host, "MUSTER_TRANSPORT": transport, "MUSTER_NODE_GRACE": grace}
		return networkOptions(func(name string) string { return env[name] })
	}
	for _, host := range []string{"", "10.0.0.1", "10.0.0.1:7000", "fd00::1", "[fd00::1]:7000"} {
		got, err := read(host, "plain", "2.5")
		if want := (network{host, "plain", 2500 * time.Millisecond}); err != nil || got != want {
			t.Errorf("%q: %+v, %v", host, got, err)
		}
	}
	for name, err := range map[string]error{
		"MUSTER_HOST is \"node\"":             second(read("node", "", "")),
		"\"0\" is no port":                    second(read("10.0.0.1:0", "", "")),
		"\"x\" is no port":                    second(read("10.0.0.1:x", "", "")),
		"MUSTER_TRANSPORT is \"http\"":        second(read("", "http", "")),
		"MUSTER_NODE_GRACE is \"soon\"":       second(read("", "", "soon")),
		"MUSTER_NODE_GRACE is \"0\"":          second(read("", "", "0")),
		"MUSTER_NODE_GRACE is \"-1\"":         second(read("", "", "-1")),
		"MUSTER_NODE_GRACE is \"NaN\"":        second(read("", "", "NaN")),
		"MUSTER_HOST is \"10.0.0.1, 10.0.0.2": second(read("10.0.0.1, 10.0.0.2", "", "")),
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v; want it to say %s", err, name)
		}
	}
}
