package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

const (
	width  = 1200.0
	row    = 17
	least  = width / 100 // of a box; narrower ones are left out
	letter = 6.7         // what one takes at this size
)

// draw makes the picture of all that was called.
func draw(title string, root *call) string {
	var b strings.Builder
	scale := width / float64(root.spent)
	height := (depth(root, scale) + 2) * row
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" font-family="Verdana, sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/><text x="4" y="13">%s</text>`+"\n", html.EscapeString(title))
	box(&b, root, 0, height-row, scale, root)
	b.WriteString("</svg>\n")
	return b.String()
}

// depth is how many rows c and what it calls take.
func depth(c *call, scale float64) int {
	most := 0
	for _, x := range c.calls {
		if float64(x.spent)*scale >= least {
			most = max(most, depth(x, scale))
		}
	}
	return most + 1
}

func box(b *strings.Builder, c *call, x float64, y int, scale float64, root *call) {
	w := float64(c.spent) * scale
	share := 100 * float64(c.spent) / float64(root.spent)
	fmt.Fprintf(b, `<g><title>%s: %.1f %%</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" rx="2"/>`, html.EscapeString(c.name), share, x, y, w-.5, row-1, colour(c.name))
	if text := fit(short(c.name), w); text != "" {
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`, x+3, y+12, html.EscapeString(text))
	}
	b.WriteString("</g>\n")
	for _, in := range slices.SortedFunc(slices.Values(c.calls), func(a, b *call) int { return strings.Compare(a.name, b.name) }) {
		if float64(in.spent)*scale >= least {
			box(b, in, x, y-row, scale, root)
		}
		x += float64(in.spent) * scale
	}
}

// short is a function's name without the folders of its package.
func short(name string) string { return name[strings.LastIndex(name, "/")+1:] }

// fit cuts a text to a box. Empty: there is no room for any of it.
func fit(text string, w float64) string {
	n := int((w - 6) / letter)
	switch {
	case n >= len(text):
		return text
	case n < 4:
		return ""
	}
	return text[:n-1] + "…"
}

// colour tells whose code it is.
func colour(name string) string {
	for _, x := range []struct{ part, colour string }{
		{"fairlead/", "#f4a259"}, {"syscall", "#8cb8d9"}, {"internal/poll", "#8cb8d9"}, {"crypto/", "#a9d18e"}, {"hpack", "#f0d98c"}, {"net/http", "#c9b1d9"}, {"http2", "#c9b1d9"},
	} {
		if strings.Contains(name, x.part) {
			return x.colour
		}
	}
	return "#d5d5d5" // the runtime, and all else
}
