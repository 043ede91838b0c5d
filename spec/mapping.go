package spec

import (
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxMapping bounds a mapping, and with it a cluster: more entries are a slip
// of the pen, and are refused before memory is taken for them.
const MaxMapping = 1 << 20

const mappingForms = `accepted: "0-7,16-23", "[0, 1, 2]", "list(range(0, 8))", "range(0, 8, 2)", a single id, and sums of those with "+"`

// ParseMapping reads a device_mapping written as text into the ids it names, in
// its order. It knows a few forms and evaluates nothing:
//
//	sum   = term { "+" term }
//	term  = spans | list | range | "list" "(" ( list | range ) ")"
//	list  = "[" [ spans [ "," ] ] "]"
//	spans = span { "," span }
//	span  = id [ "-" id ]
//	range = "range" "(" int [ "," int [ "," int ] ] ")"
//
// An id is 0 or more; range counts as Python's does, steps below 0 included.
// Its errors have CodePlacement and point at the offending place.
func ParseMapping(text string) ([]int, error) {
	p := mappingParser{text: text, ids: []int{}}
	if err := p.sum(); err != nil {
		return nil, err
	}
	return p.ids, nil
}

type mappingParser struct {
	text string
	at   int // byte offset
	ids  []int
}

func (p *mappingParser) sum() error {
	p.space()
	if p.at == len(p.text) {
		return p.fail(0, "the text is empty")
	}
	for {
		spans, err := p.term()
		if err != nil {
			return err
		}
		p.space()
		if p.at == len(p.text) {
			return nil
		}
		if !p.eat('+') {
			expected := `"+" or the end`
			if spans {
				expected = `",", "-", ` + expected
			}
			return p.fail(p.at, "expected %s", expected)
		}
		p.space()
	}
}

// term reads one part of a sum, and says whether it was plain spans.
func (p *mappingParser) term() (spans bool, err error) {
	switch word := p.word(); {
	case word == "range":
		return false, p.rangeCall()
	case word == "list":
		return false, p.listCall()
	case word != "":
		return false, p.fail(p.at-len(word), "%q is not known here; the text is read, never run as code", word)
	case p.eat('['):
		return false, p.list()
	}
	for {
		if err := p.span(); err != nil {
			return true, err
		}
		p.space()
		if !p.eat(',') {
			return true, nil
		}
		p.space()
	}
}

func (p *mappingParser) listCall() error {
	if err := p.need('(', `after "list"`); err != nil {
		return err
	}
	p.space()
	start := p.at
	var err error
	if p.eat('[') {
		err = p.list()
	} else if p.word() == "range" {
		err = p.rangeCall()
	} else {
		err = p.fail(start, `expected range(…) or […] inside list( )`)
	}
	if err != nil {
		return err
	}
	return p.need(')', `at the end of "list("`)
}

// list reads what follows a "[".
func (p *mappingParser) list() error {
	p.space()
	for !p.eat(']') {
		if err := p.span(); err != nil {
			return err
		}
		p.space()
		if p.eat(',') {
			p.space()
			continue
		}
		return p.need(']', `or "," in the list`)
	}
	return nil
}

// span reads one id, or two with a "-" between.
func (p *mappingParser) span() error {
	start := p.at
	first, err := p.id()
	if err != nil {
		return err
	}
	p.space()
	if !p.eat('-') {
		return p.add(start, first, 1, 1)
	}
	p.space()
	last, err := p.id()
	if err != nil {
		return err
	}
	if last < first {
		return p.fail(start, "the span %d-%d runs backwards; write %d-%d, or range(%d, %d, -1) to count down",
			first, last, last, first, first, last-1)
	}
	return p.add(start, first, last-first+1, 1)
}

// rangeCall reads the arguments of range and counts as Python does.
func (p *mappingParser) rangeCall() error {
	start := p.at - len("range")
	if err := p.need('(', `after "range"`); err != nil {
		return err
	}
	var args []int
	for {
		p.space()
		n, err := p.number()
		if err != nil {
			return err
		}
		args = append(args, n)
		p.space()
		if len(args) < 3 && p.eat(',') {
			continue
		}
		break
	}
	if err := p.need(')', `at the end of "range(", which takes one to three whole numbers`); err != nil {
		return err
	}
	from, to, step := 0, args[0], 1
	if len(args) > 1 {
		from, to = args[0], args[1]
	}
	if len(args) > 2 {
		step = args[2]
	}
	if step == 0 {
		return p.fail(start, "a range needs a step other than 0")
	}
	count := 0
	if step > 0 && to > from {
		count = (to-from-1)/step + 1
	} else if step < 0 && to < from {
		count = (from-to-1)/-step + 1
	}
	if count == 0 {
		return nil
	}
	if low := min(from, from+(count-1)*step); low < 0 {
		return p.fail(start, "this range reaches %d, and device ids start at 0", low)
	}
	return p.add(start, from, count, step)
}

// add appends count ids; the one place that takes memory, so the one that counts.
func (p *mappingParser) add(start, first, count, step int) error {
	if count > MaxMapping-len(p.ids) {
		return p.fail(start, "this makes %d entries or more; a mapping has at most %d", len(p.ids)+count, MaxMapping)
	}
	for i := range count {
		p.ids = append(p.ids, first+i*step)
	}
	return nil
}

func (p *mappingParser) id() (int, error) {
	if p.at < len(p.text) && p.text[p.at] == '-' {
		return 0, p.fail(p.at, "a device id is 0 or more, here is a minus sign")
	}
	return p.number()
}

// number reads an integer that fits 32 bits, so that sums of a few never wrap.
func (p *mappingParser) number() (int, error) {
	start, sign := p.at, 1
	if p.eat('-') {
		sign = -1
	}
	digits, n := p.at, 0
	for p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9' {
		n = n*10 + int(p.text[p.at]-'0')
		if n > math.MaxInt32 {
			return 0, p.fail(start, "this number is too large")
		}
		p.at++
	}
	if p.at == digits {
		return 0, p.fail(start, "expected a whole number")
	}
	return sign * n, nil
}

func (p *mappingParser) word() string {
	start := p.at
	for p.at < len(p.text) {
		r, size := utf8.DecodeRuneInString(p.text[p.at:])
		if r != '_' && !unicode.IsLetter(r) {
			break
		}
		p.at += size
	}
	return p.text[start:p.at]
}

func (p *mappingParser) space() {
	for p.at < len(p.text) {
		r, size := utf8.DecodeRuneInString(p.text[p.at:])
		if !unicode.IsSpace(r) {
			return
		}
		p.at += size
	}
}

func (p *mappingParser) eat(c byte) bool {
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *mappingParser) need(c byte, where string) error {
	p.space()
	if p.eat(c) {
		return nil
	}
	return p.fail(p.at, "expected %q %s", string(c), where)
}

// fail points at a place in the text, of which it shows a part that fits a line.
func (p *mappingParser) fail(at int, format string, args ...any) error {
	before, after := printable(p.text[:at]), printable(p.text[at:])
	const shown = 32
	if len(before) > shown {
		before = append([]rune("…"), before[len(before)-shown:]...)
	}
	if len(after) > shown {
		after = append(after[:shown:shown], '…')
	}
	found := "the end"
	if len(after) > 0 {
		found = fmt.Sprintf("%q", string(after[0]))
	}
	return Errorf(CodePlacement, "device_mapping: %s (at character %d, %s)\n  %s%s\n  %s^\n%s",
		fmt.Sprintf(format, args...), utf8.RuneCountInString(p.text[:at])+1, found,
		string(before), string(after), strings.Repeat(" ", len(before)), mappingForms)
}

// printable makes each rune of a text one visible column.
func printable(text string) []rune {
	runes := []rune(text)
	for i, r := range runes {
		if unicode.IsSpace(r) {
			runes[i] = ' '
		} else if !unicode.IsPrint(r) {
			runes[i] = '?'
		}
	}
	return runes
}
