package ray

// Abandon leaves the bridge alone, as a head does that is killed.
func (b *Backend) Abandon() {
	b.mu.Lock()
	br := b.bridge
	b.bridge, b.closed = nil, true
	b.mu.Unlock()
	_ = br.conn.Close()
	br.watch.Close()
}
