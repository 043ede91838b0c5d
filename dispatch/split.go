package dispatch

// Range is rows From to (not included) To.
type Range struct{ From, To int }

// Split cuts n rows into parts that differ by at most one, larger first. With
// fewer rows than parts the last ones are empty.
func Split(n, parts int) []Range {
	if parts < 1 {
		return nil
	}
	out := make([]Range, parts)
	for i := range out {
		out[i].From, out[i].To = Part(n, parts, i)
	}
	return out
}

// Part is part i of Split(n, parts), by itself.
func Part(n, parts, i int) (from, to int) {
	size, larger := n/parts, n%parts
	from = i*size + min(i, larger)
	to = from + size
	if i < larger {
		to++
	}
	return from, to
}
