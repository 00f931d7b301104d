package trust

import (
	"crypto/x509"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// maxSeries bounds the expiry series of one bundle; the CAs that expire first are shown. A bundle
// of every public CA would make 150 for each APIService.
const maxSeries = 16

// hooks are a backend's log and metrics. Events are made from Status.
type hooks struct {
	logger     *slog.Logger
	renewed    func(apiService string)
	missingSAN prometheus.Counter
	sha1       prometheus.Counter
	refusals   *prometheus.CounterVec
	reloads    *prometheus.CounterVec
	due        atomic.Int64 // Unix time of the next expiry: possibly too early, never too late
}

// ends notes when something expires. Zero means never.
func (h *hooks) ends(at time.Time) {
	for due := h.due.Load(); !at.IsZero() && at.Unix() < due && !h.due.CompareAndSwap(due, at.Unix()); due = h.due.Load() {
	}
}

func newHooks(cfg Config) *hooks {
	h := &hooks{
		logger:  cfg.Logger,
		renewed: cfg.Renewed,
		missingSAN: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_kube_aggregator_x509_missing_san_total",
			Help: "Handshakes with backends whose certificate has no subject alternative name.",
		}),
		sha1: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_kube_aggregator_x509_insecure_sha1_total",
			Help: "Handshakes with backends whose chain has a SHA-1 signature.",
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_certificate_backend_refused_total",
			Help: "Handshakes in which a backend's certificate was refused, by reason. On a connection shared by several APIServices the refusal counts for one of them.",
		}, []string{"apiservice", "reason"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_certificate_backend_bundle_reloads_total",
			Help: "Changes of a backend's CA bundle, by outcome (success, failure).",
		}, []string{"apiservice", "outcome"}),
	}
	if h.renewed == nil {
		h.renewed = func(string) {}
	}
	return h
}

// count updates upstream's two counters. Upstream counts requests, this counts handshakes: a
// certificate is presented once per connection.
func (h *hooks) count(chain []*x509.Certificate, err *Error) {
	if len(chain) == 0 {
		return
	}
	if !hasSAN(chain[0]) {
		h.missingSAN.Inc()
	}
	if (err != nil && err.Reason() == reasonInsecureSHA1) || usesSHA1(chain) {
		h.sha1.Inc()
	}
}

func (h *hooks) refused(apiService string, err *Error) {
	if apiService == "" { // no APIService has the Backend any more
		return
	}
	h.refusals.WithLabelValues(apiService, err.Reason()).Inc()
	// The prober logs the resulting verdict; here it would be logged for every dial.
	h.logger.Debug("backend certificate refused", "apiservice", apiService, "reason", err.Reason(), "err", err)
}

func (h *hooks) reloaded(apiService, source string, fault *Error, r *roots) {
	if apiService == "" { // each APIService that has the bundle reports the reload
		return
	}
	if fault != nil {
		h.reloads.WithLabelValues(apiService, "failure").Inc()
		h.logger.Warn("bundle not usable, keeping the last good one for the overlap", "apiservice", apiService, "source", source, "err", fault)
		return
	}
	h.reloads.WithLabelValues(apiService, "success").Inc()
	h.logger.Info("bundle loaded", "apiservice", apiService, "source", source, "certificates", len(r.certs), "warning", r.warning)
}

func (h *hooks) settled(apiService string) {
	h.logger.Info("replaced bundle no longer trusted", "apiservice", apiService)
}

// forget removes the series of an APIService that is gone.
func (h *hooks) forget(apiService string) {
	of := prometheus.Labels{"apiservice": apiService}
	h.refusals.DeletePartialMatch(of)
	h.reloads.DeletePartialMatch(of)
}

// gauges makes gauges of the status.
func (t *Trust) gauges() metric.Gauges {
	expiry := prometheus.NewDesc("fairlead_certificate_backend_expiration_timestamp_seconds",
		"When a certificate of a backend expires: a CA of its bundle (kind ca) or what an endpoint presented (kind leaf).",
		[]string{"apiservice", "kind", "subject", "fingerprint"}, nil)
	overlap := prometheus.NewDesc("fairlead_certificate_backend_overlap",
		"1 while replaced roots are trusted in addition to the bundle and an endpoint still needs them, 0 otherwise.", []string{"apiservice"}, nil)
	valid := prometheus.NewDesc("fairlead_certificate_backend_bundle_valid",
		"1 while the newest bundle is in use, 0 while it is unreadable.", []string{"apiservice"}, nil)
	change := prometheus.NewDesc("fairlead_certificate_backend_bundle_change_timestamp_seconds",
		"When the bundle was last replaced or became unreadable.", []string{"apiservice"}, nil)
	return metric.Gauges{All: []*prometheus.Desc{expiry, overlap, valid, change}, Make: func(gauge func(*prometheus.Desc, float64, ...string)) {
		for _, s := range t.Status() {
			for kind, certs := range map[string][]Certificate{"ca": s.CAs, "leaf": s.Leaves} {
				for _, cert := range certs[:min(len(certs), maxSeries)] {
					gauge(expiry, float64(cert.NotAfter.Unix()), s.APIService, kind, cert.Subject, cert.Fingerprint)
				}
			}
			gauge(overlap, metric.Number(s.OverlapInForce), s.APIService)
			gauge(valid, metric.Number(s.Fault == ""), s.APIService)
			if !s.Changed.IsZero() {
				gauge(change, float64(s.Changed.Unix()), s.APIService)
			}
		}
	}}
}
