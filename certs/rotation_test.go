package certs

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// server serves the store's pairs over HTTP/2. /who answers with the user of the connection's
// certificate, verified now; /watch sends each line of feed.
func server(t *testing.T, s *Store, feed <-chan string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/who", func(w http.ResponseWriter, r *http.Request) {
		if user, _ := worth(s.Clients(), r.TLS.PeerCertificates); !user {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	})
	mux.HandleFunc("/watch", func(w http.ResponseWriter, r *http.Request) {
		for {
			http.NewResponseController(w).Flush()
			select {
			case line := <-feed:
				fmt.Fprintln(w, line)
			case <-r.Context().Done():
				return
			}
		}
	})
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	hs := &http.Server{Handler: mux, TLSConfig: s.TLS(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	done := make(chan error, 1)
	go func() { done <- hs.ServeTLS(l, "", "") }()
	t.Cleanup(func() {
		hs.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serving: %v", err)
		}
	})
	return "https://" + l.Addr().String()
}

// visitor returns a client with a certificate, which trusts cas.
func visitor(t *testing.T, pair *pki.Pair, cas ...*pki.CA) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	for _, ca := range cas {
		roots.AddCert(ca.Certificate)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair.TLS()}}, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func code(c *http.Client, url string) string {
	resp, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(resp.StatusCode, " ", resp.Proto, " ", string(body))
}

// A serving pair and a client CA are replaced during a watch. The watch continues, and new
// connections get the new pair. Certificates of the removed client CA are no longer accepted, on
// the open connection as on a new one.
func TestRotationUnderTraffic(t *testing.T) {
	oldServing, newServing, oldClients, newClients := pki.NewCA("old serving"), pki.NewCA("new serving"), pki.NewCA("old clients"), pki.NewCA("new clients")
	dir := t.TempDir()
	local := pki.Leaf{CommonName: "serving", Names: []string{"127.0.0.1"}}
	certFile, keyFile := must.Get2(oldServing.Issue(local).WriteFiles(dir, "tls"))(t)
	clientCA := write(t, dir, "client.crt", oldClients.PEM())
	s := store(t, Config{Serving: PairSource{Cert: certFile, Key: keyFile}, ClientCA: clientCA})
	must.Run(t, s.Run)
	feed := make(chan string)
	url := server(t, s, feed)

	jane := visitor(t, oldClients.Issue(pki.Leaf{CommonName: "jane"}), oldServing)
	resp := must.Get(jane.Get(url + "/watch"))(t)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	watch := func(when string) {
		t.Helper()
		feed <- when
		if !lines.Scan() || lines.Text() != when {
			t.Fatalf("%s: the watch got %q, %v", when, lines.Text(), lines.Err())
		}
	}
	watch("before")
	if got := code(jane, url+"/who"); got != "200 HTTP/2.0 jane" {
		t.Fatal(got)
	}

	must.Get2(newServing.Issue(local).WriteFiles(dir, "tls"))(t)
	fresh := func() *http.Client { return visitor(t, oldClients.Issue(pki.Leaf{CommonName: "joe"}), newServing) }
	must.Soon(t, 10*time.Second, "the new serving pair", func() bool { return code(fresh(), url+"/who") == "200 HTTP/2.0 joe" })
	watch("with the new serving pair")
	check.Same(t, "200 HTTP/2.0 jane", code(jane, url+"/who"), "on the connection with the old pair")

	write(t, dir, "client.crt", pki.Bundle(oldClients, newClients))
	var kim *http.Client
	must.Soon(t, 10*time.Second, "both client CAs", func() bool {
		// A new client each time: a client does not send its certificate if the server has not
		// requested one of that CA.
		kim = visitor(t, newClients.Issue(pki.Leaf{CommonName: "kim"}), newServing)
		return code(kim, url+"/who") == "200 HTTP/2.0 kim"
	})
	check.Same(t, "200 HTTP/2.0 jane", code(jane, url+"/who"), "with both client CAs")
	write(t, dir, "client.crt", newClients.PEM())
	must.Soon(t, 10*time.Second, "the end of the old client CA", func() bool {
		return s.Status()[1].Certificates[0].Subject == "new clients" && len(s.Status()[1].Certificates) == 1
	})
	for what, c := range map[string]*http.Client{"open": jane, "new": fresh()} {
		check.Same(t, "401 HTTP/2.0 ", code(c, url+"/who"), "a user of the removed CA on a connection that is %s", what)
	}
	check.Same(t, "200 HTTP/2.0 kim", code(kim, url+"/who"), "a user of the new CA")
	watch("after all")
}

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
