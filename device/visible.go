package device

import (
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// candidate is a device as a variable may name it.
type candidate struct {
	spec.Device
	number int      // what the variable's numbers count: GPUs, be they cut in parts or not
	names  []string // its own; the start of one will do
	whole  string   // the name of the GPU that it is a part of
}

// rule is how one runtime reads the variable that lists the devices to be seen.
// For all of them the first entry that names no device ends the list, so that
// "" and "-1" mean none.
type rule struct {
	number   func(entry string) (int, bool)
	fits     func(name, entry string) bool // nil: numbers alone name devices
	sort     func(entry string) string     // an entry of another sort than the first ends the list; nil: sorts mix
	repeated repetition
}

// repetition is what naming a device a second time does.
type repetition int

const (
	repeatedEnds    repetition = iota // as an entry that names none
	repeatedSkipped                   // it is passed over
	repeatedEmpties                   // nothing is seen at all
)

// pick returns the candidates that list names, in its order, and whether it
// names any otherwise than by number. To name a GPU is to name all its parts.
func (r rule) pick(all []candidate, list string) (picked []candidate, byName bool) {
	var taken []int // positions in all
	entries := strings.Split(list, ",")
	for _, entry := range entries {
		found, named := r.match(all, entry)
		if len(found) == 0 || r.sort != nil && r.sort(entry) != r.sort(entries[0]) {
			break
		}
		if slices.ContainsFunc(found, func(i int) bool { return slices.Contains(taken, i) }) {
			switch r.repeated {
			case repeatedSkipped:
				continue
			case repeatedEmpties:
				return nil, false
			}
			break
		}
		taken = append(taken, found...)
		byName = byName || named
	}
	for _, i := range taken {
		picked = append(picked, all[i])
	}
	return picked, byName
}

// match returns the positions of what an entry names. The start of a name will
// do where one device alone has a name that begins so.
func (r rule) match(all []candidate, entry string) (found []int, named bool) {
	number, isNumber := r.number(entry)
	if !isNumber && r.fits == nil {
		return nil, false
	}
	fits := func(name string) bool { return r.fits(name, entry) }
	wholes := map[string]bool{}
	meant := 0
	for i, c := range all {
		switch {
		case isNumber:
			if c.number == number {
				found, meant = append(found, i), 1
			}
		case slices.ContainsFunc(c.names, fits):
			found = append(found, i)
			meant++
		case c.whole != "" && fits(c.whole):
			found = append(found, i)
			if !wholes[c.whole] {
				wholes[c.whole] = true
				meant++
			}
		}
	}
	if meant != 1 {
		return nil, false
	}
	return found, !isNumber
}

// leadingNumber reads a number as C's strtol does: what follows it is ignored.
func leadingNumber(entry string) (int, bool) {
	entry = strings.TrimLeft(entry, " \t")
	digits := strings.TrimLeft(entry, "+-")
	if len(entry)-len(digits) > 1 {
		return 0, false
	}
	end := 0
	for end < len(digits) && digits[end] >= '0' && digits[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(digits[:end])
	return n, err == nil && (n == 0 || !strings.HasPrefix(entry, "-"))
}

// bareNumber takes digits and nothing else.
func bareNumber(entry string) (int, bool) {
	n, err := strconv.ParseUint(entry, 10, 31)
	return int(n), err == nil
}

// anyBaseNumber takes a number as C writes it, nothing behind it.
func anyBaseNumber(entry string) (int, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(entry), 0, 31)
	return int(n), err == nil
}

func devicesOf(picked []candidate) []spec.Device {
	devices := make([]spec.Device, len(picked))
	for i, c := range picked {
		devices[i] = c.Device
	}
	return devices
}
