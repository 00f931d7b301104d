package pages

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

func TestLeft(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		end           time.Time
		want, urgency string
	}{
		{time.Time{}, "–", "dim"},
		{now.Add(-time.Second), "expired", "bad"},
		{now, "expired", "bad"},
		{now.Add(59 * time.Minute), "0h", "bad"},
		{now.Add(23*time.Hour + 59*time.Minute), "23h", "bad"},
		{now.Add(24 * time.Hour), "1d", "warn"},
		{now.Add(7*24*time.Hour - time.Second), "6d", "warn"},
		{now.Add(7 * 24 * time.Hour), "7d", "dim"},
		{now.Add(400*24*time.Hour + time.Hour), "400d", "dim"},
	} {
		if got := answer.Left(now, c.end); got != c.want {
			t.Errorf("%s: %s, want %s", c.end, got, c.want)
		}
		if got := urgency(now, c.end); got != c.urgency {
			t.Errorf("%s is %s, want %s", c.end, got, c.urgency)
		}
	}
}

func TestStamp(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 30, 0, 0, time.FixedZone("east", 3600)) // still February in UTC
	for want, at := range map[string]time.Time{
		"23:29:59":     now.Add(-time.Second),
		"00:30:00":     now.Add(-23 * time.Hour),
		"Feb 27 23:29": now.Add(-24*time.Hour - time.Second),
	} {
		if got := stamp(now, at); got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
}
