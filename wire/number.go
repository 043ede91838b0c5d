package wire

import "fmt"

// Frames are numbered on each connection, from 1 to 255 and then from 1 again, by
// whoever writes them to it. So a reader tells a frame that comes twice, and drops
// it, whatever it is: a leg does not run twice, nor is a lease given back twice.
// Where one is missing, the connection is as good as cut, and ends. A frame of
// number 0 is not numbered, and is taken as it comes.
const (
	numberAt = 19 // in a header: the top byte of peer
	numbers  = 255
	// behind is how far back a number is still one that came before.
	behind = numbers / 2

	// MaxPeer is the highest number of a link.
	MaxPeer = 1<<24 - 1
)

// errMissing says that a frame is not the next: a connection that loses some is of
// no use.
var errMissing = fmt.Errorf("%w: frames before this one are missing", ErrCut)

// after is the number of the frame after one.
func after(number uint8) uint8 { return number%numbers + 1 }

// placeOf says where a frame stands that comes after the one of number had; 0: none
// came yet that was numbered.
func placeOf(number, had uint8) place {
	switch {
	case number == 0, had == 0, number == after(had):
		return inTurn
	case (int(had)-int(number)+numbers)%numbers <= behind:
		return repeated
	}
	return missing
}

type place uint8

const (
	inTurn place = iota
	repeated
	missing
)

// takes says what becomes of the next frame, of which all is here: it is to be used,
// and is then the last that came, or it is not.
func (c *Conn) takes(h *rawHeader) (bool, error) {
	number := uint8(h.Peer >> 24) //nolint:gosec // its top byte
	h.Peer &= MaxPeer
	switch placeOf(number, c.had) {
	case repeated:
		return false, nil
	case missing:
		return false, errMissing
	}
	if number != 0 {
		c.had = number
	}
	return true, nil
}

// isRepeat says that a frame came before.
func (c *Conn) isRepeat(h *rawHeader) bool {
	return placeOf(uint8(h.Peer>>24), c.had) == repeated //nolint:gosec // its top byte
}

// numberLocked numbers the frame that a header is of.
func (c *Conn) numberLocked(header []byte) {
	c.gave = after(c.gave)
	header[numberAt] = c.gave
}
