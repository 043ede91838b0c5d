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

const mappingForms = `accepted: "0-7,16-23", "[0, 1, 2]", "list(range(0, 8))", "range(0, 16 // 2, 2)", "[0, 1] * 2", a single id, and sums of those with "+"`

// ParseMapping reads a device_mapping written as text into the ids it names, in
// its order. It knows a few forms and evaluates nothing:
//
//	sum   = term { "+" term }
//	term  = spans | ( list | range | "list" "(" ( list | range ) ")" ) { "*" int }
//	list  = "[" [ spans [ "," ] ] "]" | "(" [ spans [ "," ] ] ")"
//	spans = span { "," span }
//	span  = id [ "-" id ]
//	range = "range" "(" count [ "," count [ "," count ] ] ")"
//	count = product { ( "+" | "-" ) product }
//	product = [ "-" ] int { ( "*" | "//" ) [ "-" ] int }
//
// An id is 0 or more; range and what is counted in it are as Python has them, steps below 0
// included.
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
	before := len(p.ids)
	switch word := p.word(); {
	case word == "range":
		err = p.rangeCall()
	case word == "list":
		err = p.listCall()
	case word != "":
		return false, p.fail(p.at-len(word), "%q is not known here; the text is read, never run as code", word)
	case p.eat('['):
		err = p.list(']')
	case p.eat('('):
		err = p.list(')')
	default:
		return true, p.spans()
	}
	for err == nil {
		p.space()
		start := p.at
		if !p.eat('*') {
			return false, nil
		}
		err = p.repeat(start, before)
	}
	return false, err
}

// repeat reads how often what was added since before is there.
func (p *mappingParser) repeat(start, before int) error {
	p.space()
	times, err := p.number()
	if err != nil {
		return err
	}
	once := p.ids[before:len(p.ids):len(p.ids)]
	p.ids = p.ids[:before]
	if len(once) > 0 && times > (MaxMapping-before)/len(once) {
		return p.fail(start, "this makes %d entries or more; a mapping has at most %d", before+times*len(once), MaxMapping)
	}
	for range times {
		p.ids = append(p.ids, once...)
	}
	return nil
}

func (p *mappingParser) spans() error {
	for {
		if err := p.span(); err != nil {
			return err
		}
		p.space()
		if !p.eat(',') {
			return nil
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
		err = p.list(']')
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

// list reads what follows a "[" or "(", to its end.
func (p *mappingParser) list(end byte) error {
	p.space()
	for !p.eat(end) {
		if err := p.span(); err != nil {
			return err
		}
		p.space()
		if p.eat(',') {
			p.space()
			continue
		}
		return p.need(end, `or "," in the list`)
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
		n, err := p.count()
		if err != nil {
			return err
		}
		args = append(args, n)
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

// count reads whole numbers with signs of arithmetic between them.
func (p *mappingParser) count() (int, error) {
	return p.reckon(p.product, "+", "-")
}

func (p *mappingParser) product() (int, error) {
	return p.reckon(p.signed, "*", "//")
}

// reckon reads what has some of the signs between, from left to right.
func (p *mappingParser) reckon(next func() (int, error), signs ...string) (int, error) {
	left, err := next()
	for err == nil {
		p.space()
		start := p.at
		sign := p.oneOf(signs)
		if sign == "" {
			return left, nil
		}
		var right int
		if right, err = next(); err != nil {
			break
		}
		switch sign {
		case "+":
			left += right
		case "-":
			left -= right
		case "*":
			left *= right
		case "//":
			if right == 0 {
				return 0, p.fail(start, "nothing is divided by 0")
			}
			left = floor(left, right)
		}
		if left > math.MaxInt32 || left < -math.MaxInt32 {
			return 0, p.fail(start, "this number is too large")
		}
	}
	return 0, err
}

// floor divides as Python's // does.
func floor(a, b int) int {
	if a%b != 0 && (a < 0) != (b < 0) {
		return a/b - 1
	}
	return a / b
}

func (p *mappingParser) signed() (int, error) {
	p.space()
	if p.eat('-') {
		n, err := p.number()
		return -n, err
	}
	return p.number()
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
	start, n := p.at, 0
	for p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9' {
		n = n*10 + int(p.text[p.at]-'0')
		if n > math.MaxInt32 {
			return 0, p.fail(start, "this number is too large")
		}
		p.at++
	}
	if p.at == start {
		return 0, p.fail(start, "expected a whole number")
	}
	return n, nil
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

// oneOf takes the first of the signs that is there.
func (p *mappingParser) oneOf(signs []string) string {
	for _, sign := range signs {
		if strings.HasPrefix(p.text[p.at:], sign) {
			p.at += len(sign)
			return sign
		}
	}
	return ""
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
