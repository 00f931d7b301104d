package answer

import (
	"fmt"
	"time"
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
