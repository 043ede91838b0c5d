package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

func sortedKeys(m map[string]float64) []string { return slices.Sorted(maps.Keys(m)) }

// plot draws the head's CPU per phase over the number of workers, both axes
// logarithmic, with a line for exact proportion. It is an SVG by hand: a picture
// of seven lines needs no library.
func plot(r *Report) string {
	const width, height, left, right, top, bottom = 760, 460, 70, 150, 40, 50
	colours := []string{"#9aa0a6", "#1a73e8", "#188038", "#d93025", "#9334e6", "#e37400", "#12858d"}
	least, most := math.Inf(1), 0.0
	first, last := float64(r.Sizes[0].Workers), float64(r.Sizes[len(r.Sizes)-1].Workers)
	for _, s := range r.Sizes {
		for _, p := range s.Phases {
			least, most = min(least, max(p.CPU, 1e-7)), max(most, p.CPU)
		}
	}
	least, most = math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most)))
	x := func(v float64) float64 {
		if first == last {
			return left
		}
		return left + (width-left-right)*math.Log(v/first)/math.Log(last/first)
	}
	y := func(v float64) float64 {
		return height - bottom - (height-top-bottom)*math.Log(max(v, least)/least)/math.Log(most/least)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="14">CPU of the head by number of workers (simulated, 8 a node, relayed)</text>`+"\n", left)
	for v := least; v <= most*1.001; v *= 10 {
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e8eaed"/><text x="%d" y="%.1f" text-anchor="end" fill="#5f6368">%s</text>`+"\n",
			left, y(v), width-right, y(v), left-8, y(v)+4, strings.Replace(seconds(v), ".0", "", 1))
	}
	for _, s := range r.Sizes {
		at := x(float64(s.Workers))
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e8eaed"/><text x="%.1f" y="%d" text-anchor="middle" fill="#5f6368">%d</text>`+"\n",
			at, top, at, height-bottom, at, height-bottom+18, s.Workers)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="#5f6368">workers</text>`+"\n", (left+width-right)/2, height-12)
	// Proportion: a line of slope one from the middle of the axis.
	start := least * 10
	fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#9aa0a6" stroke-dasharray="4 4"/>`+"\n",
		x(first), y(start), x(min(last, first*most/start)), y(min(most, start*last/first)))
	for i, p := range r.Sizes[0].Phases {
		var points []string
		for _, s := range r.Sizes {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(float64(s.Workers)), y(s.Phases[i].CPU)))
		}
		colour := colours[i%len(colours)]
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), colour)
		row := top + 14 + 20*i
		fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2"/><text x="%d" y="%d">%s</text>`+"\n",
			width-right+14, row-4, width-right+34, row-4, colour, width-right+40, row, p.Name)
	}
	fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#9aa0a6" stroke-dasharray="4 4"/><text x="%d" y="%d">in proportion</text>`+"\n",
		width-right+14, top+14+20*len(r.Sizes[0].Phases)-4, width-right+34, top+14+20*len(r.Sizes[0].Phases)-4, width-right+40, top+14+20*len(r.Sizes[0].Phases))
	b.WriteString("</svg>\n")
	return b.String()
}
