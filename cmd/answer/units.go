package answer

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Left is how long a certificate is still good: in whole days, and on its last day in whole hours. Zero is a dash.
func Left(now, t time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero():
		return "–"
	case d <= 0:
		return "expired"
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// Soon is when a certificate's end is worth a colour: as long before as the shipped alerts are.
const Soon = 7 * 24 * time.Hour

// Ago is how long something has lasted, as kubectl writes ages. Zero is a dash.
func Ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(now.Sub(t), 0))
}

// Latency is a latency in seconds, with the two digits that one can compare. Zero is a dash.
func Latency(seconds float64) string {
	switch {
	case seconds <= 0:
		return "-"
	case seconds < .01:
		return fmt.Sprintf("%.1fms", seconds*1e3)
	case seconds < 1:
		return fmt.Sprintf("%.0fms", seconds*1e3)
	}
	return fmt.Sprintf("%.1fs", seconds)
}

// Rate is a number of requests per second. Zero is a dash.
func Rate(perSecond float64) string {
	switch {
	case perSecond <= 0:
		return "-"
	case perSecond < 10:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return fmt.Sprintf("%.0f/s", perSecond)
}
