package pages

import (
	"fmt"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

// urgency is the class of the style sheet for what Left says.
func urgency(now, t time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero() || d >= answer.Soon:
		return "dim"
	case d >= 24*time.Hour:
		return "warn"
	default:
		return "bad"
	}
}

// stamp is a time of today, or of a day that it names.
func stamp(now, t time.Time) string {
	if now, t = now.UTC(), t.UTC(); now.Format(time.DateOnly) != t.Format(time.DateOnly) {
		return t.Format("Jan _2 15:04")
	}
	return t.Format(time.TimeOnly)
}

func worst(list []float64) float64 {
	most := 0.0
	for _, v := range list {
		most = max(most, v)
	}
	return most
}

// least is the latency that fills a curve's height: what is faster need not look like mountains.
const least = .01

// spark is the path of a curve through the values, the newest at the right edge; where there was no request there is no line.
func spark(list []float64, width, height float64) string {
	const margin = 1.5 // half of the line's width, and a little
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
			fmt.Fprintf(&b, "M%.1f %.1f", max(x-step, margin), y) // a value is of the time before it: alone, it is a dash that one can see
		}
		fmt.Fprintf(&b, "L%.1f %.1f", x, y)
		pen = true
	}
	return b.String()
}
