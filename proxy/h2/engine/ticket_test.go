package engine

import (
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// A plan that comes after its request has ended is not used for a later request that reuses the
// memory.
func TestLatePlan(t *testing.T) {
	r := newRig(t)
	var resume []func(Plan)
	r.decide = func(_ *wire.Head, f func(Plan)) (Plan, bool) {
		resume = append(resume, f)
		return Plan{}, false
	}
	answer := func(i int, status string) {
		resume[i](Plan{Answer: &Answer{Status: http.StatusTeapot, Fields: []hpack.HeaderField{field(":status", status)}}})
		r.run()
	}
	c := r.client()
	c.get(1)
	c.rst(1, http2.ErrCodeCancel)
	c.get(3)
	answer(0, "418")
	c.want()
	answer(1, "204")
	if got := strings.Join(c.see(), "|"); !strings.HasPrefix(got, "HEADERS 3 :status=204 ") {
		t.Errorf("the client sees %s", got)
	}
	r.clean()
}
