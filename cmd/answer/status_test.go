package answer

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/certs/trust"
)

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
