package head

import (
	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/dispatch"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/wire"
)

// sendLocked queues the legs of a call.
func (h *Head) sendLocked(c *call.Call, p *pending, b *batch) {
	b.scratch = appendLegHead(b.scratch[:0], p.method.Name, p.parent, c.Origin())
	head := wire.Header{Kind: wire.KindLeg, ID: uint64(c.ID)}
	switch {
	case p.parts == nil:
		p.castLocked(c, head, wire.Value{Raw: p.payload, Bufs: p.bufs}, b)
	case len(p.parts) == 1:
		p.castLocked(c, head, p.parts[0], b)
	default:
		wanted := p.wanted(c)
		for i := range c.Legs {
			part := &p.parts[p.plan.Leg(i).Part]
			head.Flags = muted(wanted, i)
			h.lentLocked(lease.Worker(c.Legs[i].Worker.Number), part.Bufs)
			p.cluster.workers[c.Legs[i].Worker.Rank].sendLocked(c, i, head, part, b)
		}
	}
	p.spent()
}

// castLocked sends the same bytes to every leg, once over each agent that relays.
func (p *pending) castLocked(c *call.Call, head wire.Header, v wire.Value, b *batch) {
	if wire.HasRefs(v.Bufs) {
		for i := range c.Legs {
			p.caller.h.lentLocked(lease.Worker(c.Legs[i].Worker.Number), v.Bufs)
		}
	}
	wanted := p.wanted(c)
	if c.Ranks == nil && wanted == nil && len(c.Legs) > 1 {
		for i := range c.Legs {
			c.Sent(i)
		}
		p.cluster.broadcastLocked(head, v, b)
		return
	}
	var nodes []*node // that relay to some of the legs
	for i := range c.Legs {
		w := p.cluster.workers[c.Legs[i].Worker.Rank]
		mute := muted(wanted, i)
		l, ok := w.port.(*link)
		if !ok || len(c.Legs) == 1 {
			head.Flags = wire.FlagCast | mute
			w.sendLocked(c, i, head, &v, b)
			continue
		}
		c.Sent(i)
		cast := &l.node.cast
		if len(cast[0])+len(cast[1]) == 0 {
			nodes = append(nodes, l.node)
		}
		cast[mute/wire.FlagMute] = append(cast[mute/wire.FlagMute], l.peer)
	}
	for k, flags := range [...]wire.Flags{wire.FlagCast, wire.FlagCast | wire.FlagMute} {
		var frame []wire.Buf // one for all agents: it may be large
		for _, n := range nodes {
			if len(n.cast[k]) == 0 {
				continue
			}
			if n.conn == nil { // they will say that they have not got it
				n.cast[k] = n.cast[k][:0]
				continue
			}
			if frame == nil {
				head.Flags = flags
				frame = wire.Bytes(wholeFrame(head, b.scratch, v.Raw, v.Bufs))
			}
			b.queue(n.conn, wire.Header{Kind: wire.KindFanout}, nil, appendPeers(nil, n.cast[k]), frame)
			n.cast[k] = n.cast[k][:0]
		}
	}
}

// sendLocked queues a leg for w alone. While it is away nothing is queued: it will
// say that it has not got it.
func (w *worker) sendLocked(c *call.Call, leg int, head wire.Header, v *wire.Value, b *batch) {
	c.Sent(leg)
	if w.port != nil {
		head.Ack = w.Mark()
		b.queue(w.port, head, b.scratch, v.Raw, v.Bufs)
	}
}

// broadcastLocked sends the same bytes to every rank. Where they are is found
// out once: it does not change but when ranks are replaced.
func (cl *cluster) broadcastLocked(head wire.Header, v wire.Value, b *batch) {
	if cl.direct == nil && cl.fans == nil {
		relayed := map[*wire.Conn][]uint32{}
		for _, w := range cl.workers {
			if l, ok := w.port.(*link); ok {
				relayed[l.conn] = append(relayed[l.conn], l.peer)
			} else if w.port != nil {
				cl.direct = append(cl.direct, w)
			}
		}
		for conn, peers := range relayed {
			cl.fans = append(cl.fans, fan{conn, appendPeers(nil, peers)})
		}
	}
	head.Flags = wire.FlagCast
	for _, to := range cl.direct {
		head.Ack = to.Mark()
		b.queue(to.port, head, b.scratch, v.Raw, v.Bufs)
	}
	if len(cl.fans) == 0 {
		return
	}
	head.Ack = 0
	frame := wire.Bytes(wholeFrame(head, b.scratch, v.Raw, v.Bufs))
	for _, to := range cl.fans {
		b.queue(to.conn, wire.Header{Kind: wire.KindFanout}, nil, to.peers, frame)
	}
}

// wanted says, by leg, whose results come back; nil: everyone's. The others are
// told so, and do not send what nobody would read.
func (p *pending) wanted(c *call.Call) []bool {
	collect := &p.plan.Collect
	switch {
	case c.Split, collect.Join != dispatch.JoinOne && collect.Ranks == nil, len(c.Legs) == 1:
		return nil
	case collect.Join == dispatch.JoinOne:
		wanted := make([]bool, len(c.Legs))
		wanted[c.LegOfRank(collect.Rank)] = true
		return wanted
	}
	wanted := make([]bool, len(c.Legs))
	for _, rank := range collect.Ranks {
		wanted[c.LegOfRank(rank)] = true
	}
	return wanted
}

func muted(wanted []bool, leg int) wire.Flags {
	if wanted == nil || wanted[leg] {
		return 0
	}
	return wire.FlagMute
}
