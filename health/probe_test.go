package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// typedError is an error like those of package certs/trust.
type typedError struct{}

func (typedError) Error() string  { return "no certificate in the bundle" }
func (typedError) Reason() string { return registry.ReasonInvalidCABundle }

// probeOnce probes the only endpoint of an entry, at a real address, once.
func probeOnce(tb testing.TB, e *registry.Entry, trust func() (*tls.Config, error)) (finding, *claim) {
	tb.Helper()
	p := must.Get(New(Config{
		Table:  func() Table { return new(registry.Table) },
		Report: func(registry.Report) {},
		Dial:   new(net.Dialer).DialContext,
		TLS:    func(string, *registry.Backend) (*tls.Config, error) { return trust() },
	}))(tb)
	tgt := newTarget(p, key{e.Backend, e.Endpoints[0].Address, defaultInterval, e.GroupVersion.Empty()})
	c := newClaim(tgt, e)
	f := (&round{target: tgt}).alone(tb.Context(), c, 0)
	tb.Cleanup(func() { closeConn(f.conn) })
	return f, c
}

func TestProbeAsksAsKubeAggregatorDoes(t *testing.T) {
	for _, http1 := range []bool{false, true} {
		var got *http.Request
		var names []string
		ca := newAuthority(serverName)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
		s.TLS = &tls.Config{
			Certificates: []tls.Certificate{ca.pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.roots,
			GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				names = append(names, h.ServerName)
				return nil, nil
			},
		}
		s.EnableHTTP2 = true
		s.StartTLS()
		address := s.Listener.Addr().String()
		e := entry(address)
		e.Backend.HTTP1 = http1
		o, _ := probeOnce(t, e, func() (*tls.Config, error) {
			return &tls.Config{RootCAs: ca.roots, Certificates: []tls.Certificate{ca.pair}}, nil
		})
		closeConn(o.conn)
		s.Close()
		if o.err != nil || got == nil {
			t.Fatalf("HTTP/1.1 only %v: %v", http1, o.err)
		}
		if want := map[bool]int{true: 1, false: 2}[http1]; got.ProtoMajor != want {
			t.Errorf("spoke %s, want HTTP/%d", got.Proto, want)
		}
		if got.Method != "GET" || got.RequestURI != "/apis/metrics.k8s.io/v1beta1" || got.Host != address {
			t.Errorf("sent %s %s to %s", got.Method, got.RequestURI, got.Host)
		}
		if u, g := got.Header.Get("X-Remote-User"), got.Header.Get("X-Remote-Group"); u != "system:kube-aggregator" || g != "system:masters" {
			t.Errorf("as %q in %q", u, g)
		}
		if len(got.TLS.PeerCertificates) != 1 || len(names) != 1 || names[0] != serverName {
			t.Errorf("%d certificates, names %q", len(got.TLS.PeerCertificates), names)
		}
	}
}

func TestProbeURL(t *testing.T) {
	e := entry()
	if got := probeURL(e, "[fd00::1]:443").String(); got != "https://[fd00::1]:443/apis/metrics.k8s.io/v1beta1" {
		t.Error(got)
	}
	e.Name, e.GroupVersion = "v1.", schema.GroupVersion{Version: "v1"}
	if got := probeURL(e, "10.0.0.1:443").String(); got != "https://10.0.0.1:443/api/v1" {
		t.Error(got)
	}
}

func TestWhyAProbeFails(t *testing.T) {
	good, other := newAuthority(serverName), newAuthority(serverName)
	wrongName := newAuthority("other.svc")
	expired := authorityOf(pki.Leaf{Names: []string{serverName}, NotBefore: time.Unix(0, 0), NotAfter: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)})
	answer := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
		}
	}
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	tests := []struct {
		name    string
		server  authority
		handler http.HandlerFunc
		trust   func() (*tls.Config, error)
		reason  string
		message string // $U is the URL; empty if the probe passes
	}{
		{"200", good, answer(200), good.trust, "", ""},
		{"299", good, answer(299), good.trust, "", ""},
		{"302", good, answer(302), good.trust, "FailedDiscoveryCheck", "failing or missing response from $U: bad status from $U: 302"},
		{"403", good, answer(403), good.trust, "FailedDiscoveryCheck", "failing or missing response from $U: bad status from $U: 403"},
		{"503", good, answer(503), good.trust, "FailedDiscoveryCheck", "failing or missing response from $U: bad status from $U: 503"},
		{"hangs up", good, hangUp, good.trust, "FailedDiscoveryCheck", `failing or missing response from $U: Get "$U": EOF`},
		{"other authority", other, answer(200), good.trust, "FailedDiscoveryCheck",
			`failing or missing response from $U: Get "$U": tls: failed to verify certificate: x509: certificate signed by unknown authority`},
		{"wrong name", wrongName, answer(200), wrongName.trust, "FailedDiscoveryCheck",
			`failing or missing response from $U: Get "$U": tls: failed to verify certificate: x509: certificate is valid for other.svc, not ` + serverName},
		{"expired", expired, answer(200), expired.trust, "FailedDiscoveryCheck",
			`failing or missing response from $U: Get "$U": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: ` +
				`current time T is after 2020-01-01T00:00:00Z`},
		{"no bundle", good, answer(200), func() (*tls.Config, error) { return nil, fmt.Errorf("looking: %w", typedError{}) },
			"InvalidCABundle", "no certificate in the bundle"},
		{"bundle found wanting in the handshake", good, answer(200), func() (*tls.Config, error) {
			return &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error { return typedError{} }}, nil
		}, "InvalidCABundle", "no certificate in the bundle"},
		{"untyped trust error", good, answer(200), func() (*tls.Config, error) { return nil, errors.New("no key pair") },
			"FailedDiscoveryCheck", `failing or missing response from $U: Get "$U": no key pair`},
	}
	clock := regexp.MustCompile(`current time \S+ is`)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(tt.handler)
			s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			s.TLS = &tls.Config{Certificates: []tls.Certificate{tt.server.pair}}
			s.StartTLS()
			defer s.Close()
			o, c := probeOnce(t, entry(s.Listener.Addr().String()), tt.trust)
			defer closeConn(o.conn)
			if tt.message == "" {
				if o.err != nil || o.conn == nil {
					t.Fatalf("failed: %v", o.err)
				}
				return
			}
			if o.err == nil || o.conn != nil {
				t.Fatal("passed")
			}
			reason, message := explain(o.err, c.url)
			message = clock.ReplaceAllString(message, "current time T is")
			if want := strings.ReplaceAll(tt.message, "$U", c.url); reason != tt.reason || message != want {
				t.Errorf("got  %s: %s\nwant %s: %s", reason, message, tt.reason, want)
			}
		})
	}
}

// A backend that hangs has one message, wherever it hangs and whichever timer expires. One that
// cannot be dialled has another. All messages are bounded.
func TestExplain(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(hang))
	defer s.Close()
	get := func(ctx context.Context, patience time.Duration) error {
		r := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil))(t)
		_, err := (&http.Client{Timeout: patience}).Do(r)
		return err
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	const want = "failing or missing response from U: context deadline exceeded"
	for name, err := range map[string]error{
		"client": get(t.Context(), time.Millisecond), "context": get(short, time.Minute), "late": context.DeadlineExceeded,
		"read": &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded},
	} {
		if _, got := explain(err, "U"); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if _, got := explain(&net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}, "U"); got != "failing or missing response from U: dial tcp: i/o timeout" {
		t.Error(got)
	}
	if _, got := explain(errors.New(strings.Repeat("ü", 5000)), "U"); len(got) > maxMessage+10 || !utf8.ValidString(got) {
		t.Errorf("a message of %d bytes", len(got))
	}
}

// Whatever a backend answers, a probe ends, its message is limited text, and no goroutine is left.
func FuzzProbeAnswer(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nabc",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 \xff\xfe\r\n\r\n",
		"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1/\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", "\x00\x00\x00\x04\x00",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 2*maxHead) + "\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	ca := newAuthority(serverName)
	l := must.Get(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{ca.pair}}))(f)
	answers := make(chan []byte, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write(<-answers)
			_ = c.Close()
		}
	}()
	f.Cleanup(func() { _ = l.Close() })
	before := runtime.NumGoroutine()
	f.Fuzz(func(t *testing.T, answer []byte) {
		answers <- answer
		e := entry(l.Addr().String())
		e.Backend.HTTP1 = true
		o, c := probeOnce(t, e, ca.trust)
		closeConn(o.conn)
		if o.err != nil {
			if _, m := explain(o.err, c.url); len(m) > maxMessage+10 || !utf8.ValidString(m) {
				t.Errorf("message of %d bytes: %q", len(m), m)
			}
		} else if !bytes.Contains(answer, []byte(" 2")) {
			t.Errorf("passed with %q", answer)
		}
		must.Soon(t, 10*time.Second, "at most 20 more goroutines", func() bool { return runtime.NumGoroutine() <= before+20 })
	})
}
