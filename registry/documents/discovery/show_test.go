package discovery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// show describes what clients see, a line per group-version, and the status that operators see.
func (s *stage) show() string {
	s.Helper()
	w := s.get("/apis", http.Header{"Accept": {aggregatedJSON}})
	if w.Code != http.StatusOK {
		return fmt.Sprintf("%d %s\n", w.Code, bytes.TrimSpace(w.Body.Bytes()))
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	must.Do(s, json.Unmarshal(w.Body.Bytes(), list))
	var b strings.Builder
	for _, g := range list.Items {
		for _, v := range g.Versions {
			fmt.Fprintf(&b, "%s/%s %s", g.Name, v.Version, v.Freshness)
			for _, r := range v.Resources {
				b.WriteString(" " + r.Resource)
			}
			b.WriteByte('\n')
		}
	}
	for _, st := range s.d.Status() {
		fmt.Fprintf(&b, "status %s %s", st.Name, st.Reason)
		switch age := time.Since(st.Confirmed); {
		case st.Confirmed.IsZero():
		case age <= time.Minute+time.Second: // with any jitter
			b.WriteString(" confirmed")
		default:
			b.WriteString(" confirmed long ago")
		}
		b.WriteByte('\n')
	}
	return b.String()
}
