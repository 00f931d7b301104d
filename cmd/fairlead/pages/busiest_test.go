package pages

import (
	"net/http"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// The busiest callers are a document and a page. Parameters that mean nothing are refused, not ignored.
func TestBusiest(t *testing.T) {
	s := newStand(t)
	for query, want := range map[string]int{
		"": 200, "?by=user&window=hour&sort=refused&limit=3": 200, "?by=name": 400, "?window=day": 400, "?sort=name": 400, "?limit=x": 400, "?limit=0": 400, "?limit=101": 400,
	} {
		w, text := s.get(t, "/busiest"+query)
		check.Same(t, want, w.Code, "%q: %s", query, text)
		if want == http.StatusOK {
			says(t, text, `"from": "`, `"rows": []`, `"watches": 0`)
		}
	}
	_, text := s.get(t, "/fairlead/busiest/")
	says(t, text, "Busiest callers of the last minute", "0 requests (0.0/s), 0.0Mi in, 0.0Mi out, 0 watches open", "<td>others</td>", `href="../busiest"`, `href="../style.css"`)
}
