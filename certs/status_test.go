package certs

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Every certificate in force has its expiry, and every source its state.
func TestMetrics(t *testing.T) {
	ca, clients, proxies := pki.NewCA("serving CA"), pki.NewCA("kubernetes"), pki.NewCA("front-proxy-ca")
	dir := t.TempDir()
	client := write(t, dir, "client.crt", pki.Bundle(clients, clients)) // twice: a repeated series would make the scrape fail
	metrics := prometheus.NewPedanticRegistry()                         // rejects undescribed metrics
	sni := pairFiles(t, ca.Issue(pki.Leaf{CommonName: "sni-2"}))        // given twice, for the same reason
	s := store(t, Config{
		Serving:         pairFiles(t, ca.Issue(pki.Leaf{CommonName: "serving"})),
		SNI:             []PairSource{pairFiles(t, ca.Issue(pki.Leaf{CommonName: "sni-1"})), sni, sni},
		ClientCA:        client,
		RequestHeaderCA: written(t, proxies.PEM()),
		ProxyClient:     pairFiles(t, proxies.Issue(pki.Leaf{CommonName: "front-proxy-client"})),
		Metrics:         metrics,
	})
	stop := must.Run(t, s.Run)
	write(t, dir, "client.crt", clients.PEM()[:50])
	must.Soon(t, 10*time.Second, "the fault", func() bool { return s.Status()[5].Err != "" })
	stop()
	families := must.Get(metrics.Gather())(t)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			key := strings.TrimPrefix(f.GetName(), "fairlead_certificate_")
			for _, l := range m.Label {
				if l.GetName() != "fingerprint" {
					key += " " + filepath.Base(l.GetValue())
				}
			}
			got[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if strings.HasSuffix(f.GetName(), "timestamp_seconds") {
				if got[key] == 0 {
					t.Errorf("%s is zero", key)
				}
				got[key] = -1 // present; the value is not compared
			}
		}
	}
	want := map[string]float64{
		"expiration_timestamp_seconds client.crt kubernetes client-ca":         -1,
		"expiration_timestamp_seconds ca.crt front-proxy-ca requestheader-ca":  -1,
		"expiration_timestamp_seconds tls.crt front-proxy-client proxy-client": -1,
		"expiration_timestamp_seconds tls.crt serving serving":                 -1,
		"expiration_timestamp_seconds tls.crt sni-1 sni":                       -1,
		"expiration_timestamp_seconds tls.crt sni-2 sni":                       -1,
		"reload_valid client.crt client-ca":                                    0,
		"reload_valid ca.crt requestheader-ca":                                 1,
		"reload_valid tls.crt proxy-client":                                    1,
		"reload_valid tls.crt serving":                                         1,
		"reload_valid tls.crt sni":                                             1,
		"reloads_total failure client.crt client-ca":                           1,
		"reloads_total success client.crt client-ca":                           0,
		"change_timestamp_seconds client.crt client-ca":                        -1,
		"change_timestamp_seconds ca.crt requestheader-ca":                     -1,
		"change_timestamp_seconds tls.crt proxy-client":                        -1,
		"change_timestamp_seconds tls.crt serving":                             -1,
		"change_timestamp_seconds tls.crt sni":                                 -1,
	}
	for _, from := range []string{"ca.crt requestheader-ca", "tls.crt proxy-client", "tls.crt serving", "tls.crt sni"} {
		for _, outcome := range []string{"success", "failure"} {
			want["reloads_total "+outcome+" "+from] = 0
		}
	}
	check.Same(t, want, got, "series")
}
