package spec

import (
	"strconv"
	"strings"
)

// Spans writes ids the short way that ParseMapping reads: 0-7,16,18-19.
func Spans(ids []int) string {
	var b strings.Builder
	for i := 0; i < len(ids); {
		end := i + 1
		for end < len(ids) && ids[end] == ids[end-1]+1 {
			end++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(ids[i]))
		if end-i > 1 {
			b.WriteString("-" + strconv.Itoa(ids[end-1]))
		}
		i = end
	}
	return b.String()
}

// brief is Spans, cut to what fits a message.
func brief(ids []int) string {
	const most = 60
	text := Spans(ids)
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// quoteOdd leaves a plain name as it is and quotes any other, cut to fit.
func quoteOdd(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !nameRune(r) }) || len(name) > maxName {
		if len(name) > maxName {
			name = strings.ToValidUTF8(name[:maxName], "") + "…"
		}
		return strconv.Quote(name)
	}
	return name
}
