package pages

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/certs/trust"
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
		{now.Add(Soon - time.Second), "6d", "warn"},
		{now.Add(Soon), "7d", "dim"},
		{now.Add(400*24*time.Hour + time.Hour), "400d", "dim"},
	} {
		if got := Left(now, c.end); got != c.want {
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

func TestExpires(t *testing.T) {
	in := func(days int) time.Time { return time.Date(2026, 3, days, 0, 0, 0, 0, time.UTC) }
	cert := func(days int, live bool) trust.Certificate { return trust.Certificate{NotAfter: in(days), Live: live} }
	for _, c := range []struct {
		name  string
		trust *trust.Status
		want  time.Time
	}{
		{"local", nil, time.Time{}},
		{"nothing known", &trust.Status{}, time.Time{}},
		{"a leaf first", &trust.Status{Leaves: []trust.Certificate{cert(9, false), cert(5, false)}, CAs: []trust.Certificate{cert(20, true)}}, in(5)},
		{"its CA first", &trust.Status{Leaves: []trust.Certificate{cert(9, false)}, CAs: []trust.Certificate{cert(4, true)}}, in(4)},
		{"an old CA that nobody needs", &trust.Status{Leaves: []trust.Certificate{cert(9, false)}, CAs: []trust.Certificate{cert(1, false), cert(20, true)}}, in(9)},
		{"no leaf seen", &trust.Status{CAs: []trust.Certificate{cert(1, false), cert(20, false)}}, in(20)},
	} {
		a := APIService{Trust: c.trust}
		if got := a.Expires(); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
