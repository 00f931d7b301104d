package backend

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/registry"
)

// An Upstream that the table has given up takes no endpoint of a table that is applied late.
func TestClosedUpstreamStaysEmpty(t *testing.T) {
	f := newFixture(t, nil)
	u := f.Upstream(f.set(healthy("10.0.0.1:443")))
	if e := u.snapshot(); len(e) != 1 {
		t.Fatalf("%d endpoints", len(e))
	}
	f.generation++
	f.apply(f.generation, nil)
	u.update(&view{}, []registry.Endpoint{healthy("10.0.0.2:443")})
	if _, ok := u.Pick(); ok || len(u.snapshot()) > 1 {
		t.Errorf("it has %d endpoints", len(u.snapshot()))
	}
}
