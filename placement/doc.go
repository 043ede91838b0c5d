// Package placement decides who sits where: how large a pool some workers need
// (Shape), which nodes and devices it gets (Reserve, or ReserveNamed where they are
// named), which of them a service takes (Choose), which worker goes to which node
// and devices (Place), what each worker's environment says (Env), and how that is
// shown to people (Draw).
//
// It is pure: it imports spec alone, does no I/O, reads no clock and no
// randomness; the same input gives the same answer. The head asks it before
// anything starts, so that a plan that is only shown and one that is carried
// out are the same, and so are their errors.
package placement
