package certs

import (
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// maxSeries bounds the expiry series of one bundle.
const maxSeries = 16

// Status describes one followed value: what is in force and how the last read ended.
type Status struct {
	// Use is the purpose: serving, sni, proxy-client, client-ca, requestheader-ca,
	// authentication-configmap, or a File's.
	Use string `json:"use"`
	// Source is where it comes from.
	Source string `json:"source"`
	// Read is when it was last read. Zero means never.
	Read time.Time `json:"read,omitzero"`
	// Changed is when it was last put in force. Zero means never.
	Changed time.Time `json:"changed,omitzero"`
	// Err is why the last value read is not in force. Empty means that it is.
	Err string `json:"err,omitempty"`
	// Certificates are those in force. In a pair the leaf comes first.
	Certificates []trust.Certificate `json:"certificates,omitempty"`
}

// Status describes every followed value, in a fixed order.
func (s *Store) Status() []Status {
	s.clients.mu.Lock()
	refusal := s.clients.refusal
	s.clients.mu.Unlock()
	out := make([]Status, 0, len(s.followed))
	for _, f := range s.followed {
		f.mu.Lock()
		st := Status{Use: f.use, Source: f.source, Read: f.read, Changed: f.changed}
		err := f.err
		f.mu.Unlock()
		if errors.Is(err, errShared) {
			// A later change of the other bundle may have cured it.
			err = nil
		}
		if err == nil && slices.Contains([]string{"client-ca", "requestheader-ca", "authentication-configmap"}, f.use) {
			err = refusal
		}
		if err != nil {
			st.Err = err.Error()
		}
		if f.held != nil {
			for _, c := range f.held() {
				st.Certificates = append(st.Certificates, trust.Describe(c))
			}
		}
		out = append(out, st)
	}
	return out
}

// heldByConfigMap returns the certificates in force that come from the ConfigMap, not from a file.
func (s *Store) heldByConfigMap() (held []*x509.Certificate) {
	t := s.clients.current.Load()
	if s.cfg.TrustConfigMap && !s.clients.files.client {
		held = append(held, t.client...)
	}
	if s.cfg.TrustConfigMap && !s.clients.files.proxy {
		held = append(held, t.proxy...)
	}
	return held
}

// leaf returns the leaf in force, if there is one.
func (p *Pair) leaf() []*x509.Certificate {
	if c := p.Certificate(); c != nil {
		return []*x509.Certificate{c.Leaf}
	}
	return nil
}

func (s *Store) register(r prometheus.Registerer) error {
	s.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_certificate_reloads_total",
		Help: "Changes of a followed key pair, bundle or file, by outcome (success, failure).",
	}, []string{"use", "source", "outcome"})
	for _, f := range s.followed {
		for _, outcome := range []string{"success", "failure"} {
			// At 0 from the start, so that the first failure is an increase.
			s.reloads.WithLabelValues(f.use, f.source, outcome)
		}
	}
	labels := []string{"use", "source"}
	expiry := prometheus.NewDesc("fairlead_certificate_expiration_timestamp_seconds",
		"When a certificate in force expires: the leaf of a pair, each CA of a bundle.", append(labels, "subject", "fingerprint"), nil)
	valid := prometheus.NewDesc("fairlead_certificate_reload_valid",
		"1 while the last value read is in force, 0 while the last good value is used instead.", labels, nil)
	change := prometheus.NewDesc("fairlead_certificate_change_timestamp_seconds", "When the value was last put in force.", labels, nil)
	gauges := func(gauge func(*prometheus.Desc, float64, ...string)) {
		type series struct{ use, source, fingerprint string }
		seen := make(map[series]bool)
		for _, st := range s.Status() {
			// One source may be given twice, and a bundle may have a certificate twice: a duplicate
			// series would fail the whole scrape.
			if key := (series{st.Use, st.Source, ""}); !seen[key] {
				seen[key] = true
				gauge(valid, metric.Number(st.Err == ""), st.Use, st.Source)
				if !st.Changed.IsZero() {
					gauge(change, float64(st.Changed.Unix()), st.Use, st.Source)
				}
			}
			for _, cert := range st.Certificates[:min(len(st.Certificates), maxSeries)] {
				if key := (series{st.Use, st.Source, cert.Fingerprint}); !seen[key] {
					seen[key] = true
					gauge(expiry, float64(cert.NotAfter.Unix()), st.Use, st.Source, cert.Subject, cert.Fingerprint)
				}
			}
		}
	}
	return metric.Register(r, "certificates", s.reloads, metric.Gauges{All: []*prometheus.Desc{expiry, valid, change}, Make: gauges})
}
