package spec

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestParseMapping(t *testing.T) {
	for text, want := range map[string][]int{
		"0":                                  {0},
		"0-3":                                {0, 1, 2, 3},
		"0-1,4-5":                            {0, 1, 4, 5},
		" 3 , 1 - 2 ":                        {3, 1, 2},
		"[0,1,2]":                            {0, 1, 2},
		"[ 2, 0, ]":                          {2, 0},
		"[0-3]":                              {0, 1, 2, 3},
		"[]":                                 {},
		"list(range(0,4))":                   {0, 1, 2, 3},
		"list( range( 2 ) )":                 {0, 1},
		"list([4, 5])":                       {4, 5},
		"range(4)":                           {0, 1, 2, 3},
		"range(0, 8, 3)":                     {0, 3, 6},
		"range(3, -1, -1)":                   {3, 2, 1, 0},
		"range(4, 0)":                        {},
		"range(-5)":                          {},
		"list(range(2)) + list(range(8,10))": {0, 1, 8, 9},
		"[0] + 4-5,7 + range(1)":             {0, 4, 5, 7, 0},
		"list(range(0,2))\n+ [9]":            {0, 1, 9},
		"(2, 3)":                             {2, 3},
		"(4)":                                {4},
		"[7] + [0, 1] * 2":                   {7, 0, 1, 0, 1},
		"range(2) * 2 * 2 + [5] * 0":         {0, 1, 0, 1, 0, 1, 0, 1},
		"list(range(16 - 12, 16 // 2))":      {4, 5, 6, 7},
		"range(2 + 3*2 - 10 // 3)":           {0, 1, 2, 3, 4},
		"range(2 - -1)":                      {0, 1, 2},
		"range(-7 // 2 + 6)":                 {0, 1},
	} {
		got, err := ParseMapping(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseMapping(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
}

func TestParseMappingRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "empty",
		"  ":                      "empty",
		"-1":                      "0 or more",
		"[0, -1]":                 "0 or more",
		"7-0":                     "runs backwards; write 0-7",
		"0-":                      "whole number (at character 3, the end)",
		"0,,1":                    `whole number (at character 3, ",")`,
		"0,1,":                    "whole number",
		"0 1":                     `expected ",", "-", "+" or the end`,
		"[0,1],[2,3]":             `expected "+" or the end`,
		"[0,1":                    `expected "]"`,
		"[[0],[1]]":               "whole number",
		"range()":                 "whole number",
		"range(1,2,3,4)":          "one to three",
		"range(0,4,0)":            "other than 0",
		"range(-2, 2)":            "reaches -2",
		"range(2, -3, -1)":        "reaches -2",
		"list(4)":                 "inside list( )",
		"list(range(4))*x":        "whole number",
		"list(range(4))/2":        `expected "+" or the end`,
		"2*[0]":                   `expected ",", "-", "+" or the end`,
		"[0] * 10000000000":       "too large",
		"[0, 1] * 999999":         "at most 1048576",
		"range(1 // 0)":           "divided by 0",
		"range(65536*65536)":      "too large",
		"range(2 *)":              "whole number",
		"(0,1]":                   `expected ")"`,
		"__import__('os')":        `"__import__" is not known`,
		"0-999999999":             "at most 1048576",
		"range(1000000000)":       "at most 1048576",
		"range(600000)+0-600000":  "at most 1048576",
		"99999999999999999999999": "too large",
		"0.5":                     `(at character 2, ".")`,
		"\x00\xff":                `"?"`,
	} {
		got, err := ParseMapping(text)
		if !errors.Is(err, &Error{Code: CodePlacement}) {
			t.Errorf("ParseMapping(%q) = %v, %v; want a placement error", text, got, err)
			continue
		}
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "accepted:") {
			t.Errorf("ParseMapping(%q): %v\nwant it to say %q and what is accepted", text, err, want)
		}
	}
}

func TestParseMappingPointsAtThePlace(t *testing.T) {
	_, err := ParseMapping(strings.Repeat("0-7,", 50) + "zeven," + strings.Repeat("0-7,", 50))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 4 {
		t.Fatalf("want message, text, caret, forms; got\n%v", err)
	}
	caret := strings.IndexRune(lines[2], '^')
	if got := string([]rune(lines[1])[caret:][:5]); got != "zeven" {
		t.Errorf("the caret is at %q:\n%v", got, err)
	}
	if len([]rune(lines[1])) > 80 {
		t.Errorf("the line is too long:\n%v", err)
	}
}

func FuzzParseMapping(f *testing.F) {
	for _, seed := range []string{"0-7,16-23", "[0,1,2]", "list(range(0,8))", "range(9,0,-2)+[1,]", "list([0-3])", "(1,2)*3+range(9//-2*2-1)", "1 - 2 + \xff", "range(-2147483647,2147483647,2147483647)"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := ParseMapping(text)
		if err != nil {
			if !errors.Is(err, &Error{Code: CodePlacement}) {
				t.Fatalf("%q: not a placement error: %v", text, err)
			}
			return
		}
		if len(ids) > MaxMapping {
			t.Fatalf("%q: %d entries", text, len(ids))
		}
		for _, id := range ids {
			if id < 0 {
				t.Fatalf("%q: id %d", text, id)
			}
		}
		if len(ids) == 0 {
			return
		}
		again, err := ParseMapping(Spans(ids))
		if err != nil || !reflect.DeepEqual(again, ids) {
			t.Fatalf("%q: Spans gives %q, which reads as %v, %v", text, Spans(ids), again, err)
		}
	})
}
