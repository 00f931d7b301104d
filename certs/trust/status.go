package trust

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/metric"
)

// Status describes the trust of one APIService's backend, for the status page and for metrics.
type Status struct {
	APIService string `json:"apiService"` // its name, "local-apiserver" for the local apiserver
	// Source is where the roots come from: "inline", "system", "none" (verification is off),
	// "configmap <namespace>/<name>/<key>" or "kubeconfig".
	Source       string    `json:"source"`
	Changed      time.Time `json:"changed"`               // when the bundle was last replaced or became unreadable
	Fault        string    `json:"fault,omitempty"`       // why the newest bundle is not used. Empty means that it is
	Warning      string    `json:"warning,omitempty"`     // which part of the bundle was ignored. Empty means none
	OverlapUntil time.Time `json:"overlapUntil,omitzero"` // when the last replaced roots stop being trusted. Zero: none
	// OverlapInForce says that an endpoint still presents a chain that only replaced roots verify.
	OverlapInForce bool `json:"overlapInForce,omitempty"`
	// CAs are the bundle's certificates, empty for the system's roots and without verification.
	CAs []Certificate `json:"cas,omitempty"`
	// Leaves are the certificates that endpoints presented in the last minutes.
	Leaves []Certificate `json:"leaves,omitempty"`
}

// Faults returns the faults in the trust of APIServices, by name. It costs much less than Status.
func (t *Trust) Faults() map[string]string {
	out := make(map[string]string)
	t.mu.RLock()
	defer t.mu.RUnlock()
	for name, b := range t.backends {
		b.mu.Lock()
		switch v := b.current.Load(); {
		case v.fault != nil:
			out[name] = "the CA bundle is not used: " + v.fault.Message
		case b.inForce:
			out[name] = "the backend still presents a certificate that only the replaced CA verifies: " +
				"it is trusted until " + stamp(v.overlapUntil(time.Now()))
		}
		b.mu.Unlock()
	}
	return out
}

// Certificate is one certificate, held or presented.
type Certificate struct {
	Subject     string    `json:"subject"`           // its common name or, without one, another name
	Fingerprint string    `json:"fingerprint"`       // the first half of its SHA-256, in hexadecimal
	NotBefore   time.Time `json:"-"`                 // when it becomes valid
	NotAfter    time.Time `json:"notAfter"`          // when it expires
	Live        bool      `json:"live,omitempty"`    // a CA: a chain presented in the last minutes ends in it
	Refused     bool      `json:"refused,omitempty"` // a leaf: it was not accepted when it was last presented
}

// Describe returns a Certificate for c.
func Describe(c *x509.Certificate) Certificate {
	sum := sha256.Sum256(c.Raw)
	return Certificate{
		Subject: subject(c), Fingerprint: hex.EncodeToString(sum[:16]), NotBefore: c.NotBefore, NotAfter: c.NotAfter,
	}
}

// Status describes the local apiserver's trust and then the backends', by names of APIServices.
func (t *Trust) Status() []Status {
	var out []Status
	for _, b := range append([]*backend{t.local}, t.all()...) {
		out = append(out, b.status(time.Now()))
	}
	return out
}

func (b *backend) status(now time.Time) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.current.Load()
	s := Status{
		APIService: b.name, Source: b.source, Changed: v.changed,
		OverlapInForce: b.inForce, OverlapUntil: v.overlapUntil(now),
	}
	if v.fault != nil {
		s.Fault = v.fault.Message
	}
	liveRoots, seen := make(map[identity]bool), b.leaves
	if b.all != nil { // presented to any user of the Backend, and while this backend was not shared
		b.all.mu.Lock()
		seen = maps.Clone(b.all.leaves)
		b.all.mu.Unlock()
		maps.Copy(seen, b.leaves)
	}
	for _, l := range seen {
		if !l.Refused || now.Sub(l.seen) <= refusedMemory {
			s.Leaves = append(s.Leaves, l.Certificate)
			liveRoots[l.root] = true
		}
	}
	if v.current != nil {
		s.Warning = v.current.warning
		for _, c := range v.current.certs {
			d := Describe(c)
			d.Live = liveRoots[identify(c)]
			s.CAs = append(s.CAs, d)
		}
	}
	byExpiry := func(a, b Certificate) int {
		return cmp.Or(a.NotAfter.Compare(b.NotAfter),
			cmp.Compare(metric.Number(a.Refused), metric.Number(b.Refused)), cmp.Compare(a.Fingerprint, b.Fingerprint))
	}
	slices.SortFunc(s.CAs, byExpiry)
	s.CAs = slices.CompactFunc(s.CAs, func(a, b Certificate) bool { return a.Fingerprint == b.Fingerprint })
	slices.SortFunc(s.Leaves, byExpiry)
	return s
}

// metrics are those of events. Gauges are made from Status.
type metrics struct {
	missingSAN, sha1  prometheus.Counter
	refusals, reloads *prometheus.CounterVec
}

func (t *Trust) reloaded(apiService, source string, fault *Error, r *roots) {
	if apiService == "" { // each APIService that has the bundle reports the reload
		return
	}
	if fault != nil {
		t.metrics.reloads.WithLabelValues(apiService, "failure").Inc()
		t.say(t.cfg.Logger.Warn, "bundle not usable, keeping the last good one for the overlap",
			"apiservice", apiService, "source", source, "err", fault)
		return
	}
	t.metrics.reloads.WithLabelValues(apiService, "success").Inc()
	t.say(t.cfg.Logger.Info, "bundle loaded",
		"apiservice", apiService, "source", source, "certificates", len(r.certs), "warning", r.warning)
}

type line struct {
	log     func(message string, args ...any) // of the level
	message string
	args    []any
}

// say has logSaid log a line when no lock is held: it is I/O, and while that blocks dials must not.
func (t *Trust) say(log func(string, ...any), message string, args ...any) {
	t.saidMu.Lock()
	defer t.saidMu.Unlock()
	t.said = append(t.said, line{log, message, args})
}

func (t *Trust) logSaid() {
	t.saidMu.Lock()
	lines := t.said
	t.said = nil
	t.saidMu.Unlock()
	for _, l := range lines {
		l.log(l.message, l.args...)
	}
}

func (t *Trust) gauges() metric.Gauges {
	labels := []string{"apiservice", "kind", "subject", "fingerprint"}
	expiry := prometheus.NewDesc("fairlead_certificate_backend_expiration_timestamp_seconds",
		"When a backend's certificate expires: a verified one of an endpoint (kind leaf) or the CA of its bundle "+
			"that verifies it (kind ca; while there is none, the one that expires last).", labels, nil)
	begin := prometheus.NewDesc("fairlead_certificate_backend_not_before_timestamp_seconds",
		"When it became valid.", labels, nil)
	overlap := prometheus.NewDesc("fairlead_certificate_backend_overlap",
		"1 while replaced roots are trusted in addition to the bundle and an endpoint still needs them, 0 otherwise.",
		[]string{"apiservice"}, nil)
	valid := prometheus.NewDesc("fairlead_certificate_backend_bundle_valid",
		"1 while the newest bundle is in use, 0 while it is unreadable.", []string{"apiservice"}, nil)
	change := prometheus.NewDesc("fairlead_certificate_backend_bundle_change_timestamp_seconds",
		"When the bundle was last replaced or became unreadable.", []string{"apiservice"}, nil)
	gauges := func(gauge func(*prometheus.Desc, float64, ...string)) {
		for _, s := range t.Status() {
			cas := slices.DeleteFunc(slices.Clone(s.CAs), func(c Certificate) bool { return !c.Live })
			if len(cas) == 0 { // a bundle of every public CA has those that expire, unnoticed
				cas = s.CAs[max(0, len(s.CAs)-1):]
			}
			for kind, certs := range map[string][]Certificate{"ca": cas[:min(len(cas), maxLeaves)], "leaf": s.Leaves} {
				for _, cert := range certs {
					if !cert.Refused && s.Source != "none" { // else a stranger's, perhaps, or it may expire
						gauge(expiry, float64(cert.NotAfter.Unix()), s.APIService, kind, cert.Subject, cert.Fingerprint)
						gauge(begin, float64(cert.NotBefore.Unix()), s.APIService, kind, cert.Subject, cert.Fingerprint)
					}
				}
			}
			gauge(overlap, metric.Number(s.OverlapInForce), s.APIService)
			gauge(valid, metric.Number(s.Fault == ""), s.APIService)
			if !s.Changed.IsZero() {
				gauge(change, float64(s.Changed.Unix()), s.APIService)
			}
		}
	}
	return metric.Gauges{All: []*prometheus.Desc{expiry, begin, overlap, valid, change}, Make: gauges}
}
