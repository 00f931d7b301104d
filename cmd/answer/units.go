package answer

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Left returns how long a certificate is still valid: in whole days, and on its last day in whole
// hours. Zero is a dash.
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

// soon is how long before a certificate's end it is coloured: as long as in the shipped alerts.
const soon = 7 * 24 * time.Hour

// Urgency returns the colour of that end: bad on the last day, warn if it is soon, otherwise none.
func Urgency(now, t time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero() || d >= soon:
		return ""
	case d >= 24*time.Hour:
		return "warn"
	}
	return "bad"
}

// Ago returns how long ago t was, as kubectl prints ages. Zero is a dash.
func Ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(now.Sub(t), 0))
}

// Latency formats a latency in seconds with about two digits. Zero is a dash.
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

// Rate formats a number of requests per second. Zero is a dash.
func Rate(perSecond float64) string {
	switch {
	case perSecond <= 0:
		return "-"
	case perSecond < .01:
		return "<0.01/s"
	case perSecond < .1:
		return fmt.Sprintf("%.2f/s", perSecond)
	case perSecond < 10:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return fmt.Sprintf("%.0f/s", perSecond)
}
