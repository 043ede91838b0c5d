package store

import (
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// ParseBytes reads a number of bytes as people write it: 8GiB, 512MiB, 1.5G,
// 1048576. Units are powers of 1024; GB means GiB.
func ParseBytes(text string) (uint64, error) {
	number := strings.TrimSpace(strings.ToLower(text))
	number = strings.TrimSuffix(strings.TrimSuffix(number, "b"), "i")
	scale := 1.0
	if number != "" {
		if power := strings.IndexByte("kmgtp", number[len(number)-1]); power >= 0 {
			number = strings.TrimSpace(number[:len(number)-1])
			for range power + 1 {
				scale *= 1024
			}
		}
	}
	value, err := strconv.ParseFloat(number, 64)
	if err != nil || !(value >= 0) || value*scale >= 1<<62 {
		return 0, spec.Errorf(spec.CodeInvalid, "%q is no number of bytes: write 8GiB, 512MiB or 1073741824", text)
	}
	return uint64(value * scale), nil
}
