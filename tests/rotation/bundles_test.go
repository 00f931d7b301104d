//go:build e2e

package rotation

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// loaded waits until Fairlead has put a remote's next bundle in force.
func (s *stage) loaded(t *testing.T, r *remote, change func()) {
	t.Helper()
	count := func() string {
		return fmt.Sprint(s.metric(t, "fairlead_certificate_backend_bundle_reloads_total", `"v1.`+r.group+`"`, `outcome="success"`))
	}
	before := count()
	change()
	took := suite.Eventually(t, takenWithin, "the bundle is in force", func() (bool, string) { now := count(); return now != before, now })
	t.Logf("bundle in force after %s", took.Round(time.Millisecond))
}

// byTheBook rotates a CA so that nothing that works is ever untrusted.
func (s *stage) byTheBook(t *testing.T, r *remote, trust func(*testing.T, ...*pki.CA)) {
	t.Helper()
	m := s.mark()
	s.loaded(t, r, func() { trust(t, r.old, r.new) })
	suite.Pause(t, time.Second)
	r.serve(r.new)
	s.presented(t, r)
	s.loaded(t, r, func() { trust(t, r.new) })
	suite.Pause(t, 6*time.Second) // until the watches over connections of the old CA have ended
	s.judge(t, m, r.group)
}

func rotateInline(t *testing.T, s *stage) { s.byTheBook(t, s.inline, s.inline.trust) }

// rotateConfigMap changes a ConfigMap as cert-manager's trust-manager does.
func rotateConfigMap(t *testing.T, s *stage) { s.byTheBook(t, s.configmap, s.configmap.refer) }

// presented waits until a probe has received an endpoint's new certificate.
func (s *stage) presented(t *testing.T, r *remote) {
	t.Helper()
	fingerprints := func() int {
		return len(s.metric(t, "fairlead_certificate_backend_expiration_timestamp_seconds", `"v1.`+r.group+`"`, `kind="leaf"`))
	}
	before := fingerprints()
	suite.Eventually(t, 20*time.Second, "a probe has seen the new certificate", func() (bool, string) { n := fingerprints(); return n > before, fmt.Sprint(n) })
}

// rotateBundleFirst replaces the bundle while the backend still has its old certificate: the case
// for a replaced CA's overlap.
func rotateBundleFirst(t *testing.T, s *stage) {
	r := s.overlap
	m := s.mark()
	s.loaded(t, r, func() { r.trust(t, r.new) })
	suite.Pause(t, 8*time.Second) // of 12 s of overlap
	if got := s.metric(t, "fairlead_certificate_backend_overlap", `"v1.`+r.group+`"} 1`); len(got) != 1 {
		t.Errorf("the metric lacks the current overlap: %q", got)
	}
	r.serve(r.new)
	suite.Pause(t, 10*time.Second) // past the end of the overlap, and of the watches over connections of the old CA
	s.judge(t, m, r.group)
	if got := s.metric(t, "fairlead_certificate_backend_overlap", `"v1.`+r.group+`"} 0`); len(got) != 1 {
		t.Errorf("the metric still has the ended overlap: %q", got)
	}
}
