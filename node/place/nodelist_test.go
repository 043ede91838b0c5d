package place

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestNodelist(t *testing.T) {
	for text, want := range map[string]string{
		"n1":                        "n1",
		"a,b,c":                     "a b c",
		"gpu[01-03,07],login1":      "gpu01 gpu02 gpu03 gpu07 login1",
		"n[8-11]":                   "n8 n9 n10 n11",
		"n[008-011]":                "n008 n009 n010 n011",
		"n[1-2]-ib":                 "n1-ib n2-ib",
		"rack[0-1]node[1-2]":        "rack0node1 rack0node2 rack1node1 rack1node2",
		"n[3,1-2]":                  "n3 n1 n2",
		"[1-2]":                     "1 2",
		"a-b[1].example.org,c[2-2]": "a-b1.example.org c2",
	} {
		got, err := Nodelist(text)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, %v; want %s", text, got, err, want)
		}
	}
}

func TestNodelistsThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "an empty name",
		"a,":                    "an empty name",
		",a":                    "an empty name",
		"n[1":                   "a bracket is not closed",
		"n1]":                   "a closing bracket without an opening one at character 3",
		"n[[1]]":                "a bracket within a bracket at character 3",
		"n[]":                   "[] is no list of numbers and ranges",
		"n[a-b]":                "[a-b] is no list of numbers and ranges",
		"n[1-]":                 "[1-] is no list of numbers and ranges",
		"n[+1-2]":               "[+1-2] is no list of numbers and ranges",
		"n[5-3]":                "the range 5-3 runs backwards",
		"n[0-999999999]":        "[0-999999999] stands for more than 100000 nodes",
		"n[0-9999]m[0-9999]":    "n[0-9999]m[0-9999] stands for more than 100000 nodes",
		"a[0-60000],b[0-60000]": "the list stands for more than 100000 nodes",
		"a b":                   `" " at character 2 does not belong into a list of nodes`,
	} {
		if got, err := Nodelist(text); err == nil || err.Error() != want {
			t.Errorf("%q: got %.3v, %v; want %s", text, got, err, want)
		}
	}
}

// What is written as a list is read as the names it was made of.
func TestNodelistsRoundTrip(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		var text, want []string
		for range 1 + r.IntN(4) {
			prefix, width := string(rune('a'+r.IntN(26))), 1+r.IntN(4)
			var ranges []string
			for range 1 + r.IntN(3) {
				from := r.IntN(50)
				to := from + r.IntN(60)
				ranges = append(ranges, fmt.Sprintf("%0*d-%d", width, from, to))
				digits := max(width, len(fmt.Sprint(from)))
				for n := from; n <= to; n++ {
					want = append(want, fmt.Sprintf("%s%0*d-x", prefix, digits, n))
				}
			}
			text = append(text, prefix+"["+strings.Join(ranges, ",")+"]-x")
		}
		got, err := Nodelist(strings.Join(text, ","))
		if err != nil || strings.Join(got, " ") != strings.Join(want, " ") {
			t.Fatalf("seed %d: %v: got %v, %v; want %v", seed, text, got, err, want)
		}
	}
}

func FuzzNodelist(f *testing.F) {
	for _, text := range []string{"a", "gpu[01-03,07],login1", "rack[0-1]node[1-2]", "n[", "n[1-", "n[0-99999]", ",", "[]"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		names, err := Nodelist(text)
		if err != nil {
			return
		}
		if len(names) == 0 || len(names) > maxNodes {
			t.Fatalf("%q stands for %d nodes", text, len(names))
		}
		for _, name := range names {
			if name == "" || strings.ContainsAny(name, "[], \n") {
				t.Fatalf("%q stands for a node %q", text, name)
			}
		}
		if !strings.ContainsAny(text, "[]") && strings.Join(names, ",") != text {
			t.Fatalf("%q is read as %v", text, names)
		}
	})
}
