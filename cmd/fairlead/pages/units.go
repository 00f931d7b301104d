package pages

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

// urgency returns the CSS class for the result of answer.Left.
func urgency(now, t time.Time) string {
	return cmp.Or(answer.Urgency(now, t), "dim")
}

// stamp formats a time, with the date if it is not today.
func stamp(now, t time.Time) string {
	if now, t = now.UTC(), t.UTC(); now.Format(time.DateOnly) != t.Format(time.DateOnly) {
		return t.Format("Jan _2 15:04")
	}
	return t.Format(time.TimeOnly)
}

func worst(list []float64) float64 { return slices.Max(append([]float64{0}, list...)) }

// least is the smallest latency that fills a curve's height: lower ones should not look like peaks.
const least = .01

// spark returns the SVG path of a curve through the values, the newest at the right edge. It has
// gaps where there was no request.
func spark(list []float64, width, height float64) string {
	const margin = 1.5 // half of the line's width, plus some space
	step := (width - 2*margin) / (points - 1)
	top := max(worst(list), least)
	var b strings.Builder
	pen := false
	for i, v := range list {
		if v <= 0 {
			pen = false
			continue
		}
		x := margin + step*float64(points-len(list)+i)
		y := height - margin - (height-2*margin)*v/top
		if !pen {
			fmt.Fprintf(&b, "M%.1f %.1f", max(x-step, margin), y) // a single value is drawn as a dash
		}
		fmt.Fprintf(&b, "L%.1f %.1f", x, y)
		pen = true
	}
	return b.String()
}
