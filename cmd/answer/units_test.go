package answer

import (
	"testing"
	"time"
)

func TestUnits(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct{ got, want string }{
		{Ago(now, time.Time{}), "-"},
		{Ago(now, now.Add(time.Second)), "0s"}, // clocks differ
		{Ago(now, now.Add(-90*time.Second)), "90s"},
		{Ago(now, now.Add(-76*time.Hour)), "3d4h"},
		{Latency(0), "-"},
		{Latency(.00123), "1.2ms"},
		{Latency(.0123), "12ms"},
		{Latency(1.23), "1.2s"},
		{Rate(0), "-"},
		{Rate(.001), "<0.01/s"},
		{Rate(.0333), "0.03/s"},
		{Rate(2.5), "2.5/s"},
		{Rate(1230), "1230/s"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}
