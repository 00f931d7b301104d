package pages

import (
	"fmt"
	"strings"
	"time"
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

// days is how many whole days are left, as a certificate's life is counted.
func days(now, t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return fmt.Sprintf("%dd", int(t.Sub(now)/(24*time.Hour)))
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
	top := max(worst(list), least)
	var b strings.Builder
	pen := false
	for i, v := range list {
		if v <= 0 {
			pen = false
			continue
		}
		x := margin + (width-2*margin)*float64(points-len(list)+i)/(points-1)
		y := height - margin - (height-2*margin)*v/top
		if !pen {
			fmt.Fprintf(&b, "M%.1f %.1f", x, y) // so that a single value is a dot
		}
		fmt.Fprintf(&b, "L%.1f %.1f", x, y)
		pen = true
	}
	return b.String()
}
