package h2

import (
	"net/http"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A path that net/http cannot parse reaches no handler.
func TestUnreadableTarget(t *testing.T) {
	onDrivers(t, func(t *testing.T, driver string) {
		s := newStand(t, driver, http.NotFoundHandler(), func(_ *Head, p *Plan) {
			p.Forward, p.Serve = nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("served %s", r.URL) })
		})
		must.Get(s.greet().Write(many(t, 1, "/%zz")))(t)
		if o := <-s.ended; o.Status != http.StatusBadRequest {
			t.Errorf("%+v", o)
		}
	})
}
