package pages

import (
	"fmt"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

// ago is how long something has lasted, in its two largest units.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	d := max(now.Sub(t), 0)
	const day = 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

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

// took is a latency in seconds, with the two digits that one can compare.
func took(seconds float64) string {
	switch {
	case seconds <= 0:
		return "–"
	case seconds < .01:
		return fmt.Sprintf("%.1f ms", seconds*1e3)
	case seconds < 1:
		return fmt.Sprintf("%.0f ms", seconds*1e3)
	}
	return fmt.Sprintf("%.1f s", seconds)
}

// rate is a number of requests per second.
func rate(perSecond float64) string {
	switch {
	case perSecond <= 0:
		return "–"
	case perSecond < 10:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return fmt.Sprintf("%.0f/s", perSecond)
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
