package object

import (
	"cmp"
	"slices"

	"github.com/muster-rl/muster/wire"
)

// Away says that the link's connection has ended. Frames may still be sent: what
// they name for the first time counts when the link is back.
func (l *Link) Away() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = nil
	l.times++
	clear(l.back)
	clear(l.lent)
}

// Back gives the link a new connection and has tell say on it, before anything
// else, what this process knows of: the head counts that for it from now on,
// whatever it counted before. It is what came by any link of the process: the
// head lowers no count by it while another one is up.
func (l *Link) Back(conn *wire.Conn, tell func(objects []wire.Released)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	tell(l.stores.all())
}

// know changes how often the head counts this process for an object.
func (s *Stores) know(object uint64, by int) {
	s.counting.Lock()
	defer s.counting.Unlock()
	if s.known[object] += by; s.known[object] == 0 {
		delete(s.known, object)
	}
}

// all is what this process knows of, by number.
func (s *Stores) all() []wire.Released {
	if s == nil {
		return nil
	}
	s.counting.Lock()
	defer s.counting.Unlock()
	all := released(s.known)
	slices.SortFunc(all, func(a, b wire.Released) int { return cmp.Compare(a.Object, b.Object) })
	return all
}
