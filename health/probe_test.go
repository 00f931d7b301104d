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

// probeOnce probes a real address once.
func probeOnce(tb testing.TB, b *registry.Backend, address string, trust func() (*tls.Config, error)) (finding, *claim) {
	tb.Helper()
	e := entry(address)
	e.Backend = b
	return probeEntry(tb, e, trust)
}

// probeEntry probes the only endpoint of an entry once.
func probeEntry(tb testing.TB, e *registry.Entry, trust func() (*tls.Config, error)) (finding, *claim) {
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
		o, _ := probeOnce(t, &registry.Backend{ServerName: serverName, HTTP1: http1}, address, func() (*tls.Config, error) {
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
	trust := func(a authority) func() (*tls.Config, error) {
		return func() (*tls.Config, error) { return &tls.Config{RootCAs: a.roots}, nil }
	}
	tests := []struct {
		name    string
		server  authority
		handler http.HandlerFunc
		trust   func() (*tls.Config, error)
		reason  string
		message string // $U is the URL; empty if the probe passes
	}{
		{"200", good, answer(200), trust(good), "", ""},
		{"299", good, answer(299), trust(good), "", ""},
		{"302", good, answer(302), trust(good), "FailedDiscoveryCheck", "failing or missing response from $U: bad status from $U: 302"},
		{"403", good, answer(403), trust(good), "FailedDiscoveryCheck", "failing or missing response from $U: bad status from $U: 403"},
		{"503", good, answer(503), trust(good), "FailedDiscoveryCheck", "failing or missing response from $U: bad status from $U: 503"},
		{"hangs up", good, hangUp, trust(good), "FailedDiscoveryCheck", `failing or missing response from $U: Get "$U": EOF`},
		{"other authority", other, answer(200), trust(good), "FailedDiscoveryCheck",
			`failing or missing response from $U: Get "$U": tls: failed to verify certificate: x509: certificate signed by unknown authority`},
		{"wrong name", wrongName, answer(200), trust(wrongName), "FailedDiscoveryCheck",
			`failing or missing response from $U: Get "$U": tls: failed to verify certificate: x509: certificate is valid for other.svc, not ` + serverName},
		{"expired", expired, answer(200), trust(expired), "FailedDiscoveryCheck",
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
			o, c := probeOnce(t, &registry.Backend{ServerName: serverName}, s.Listener.Addr().String(), tt.trust)
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
// cannot be dialled has another.
func TestHangsAreExplainedAlike(t *testing.T) {
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
}

func TestMessagesAreBounded(t *testing.T) {
	if _, got := explain(errors.New(strings.Repeat("ü", 5000)), "U"); len(got) > maxMessage+10 || !utf8.ValidString(got) {
		t.Errorf("a message of %d bytes", len(got))
	}
}

// process is a real server that can be killed: its listener and all connections close at once.
type process struct {
	*http.Server
	listener net.Listener
	done     chan struct{}
}

func startProcess(t *testing.T, address string, ca authority, h2 bool) *process {
	t.Helper()
	l := must.Get(net.Listen("tcp", address))(t)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(h2)
	p := &process{listener: l, done: make(chan struct{}), Server: &http.Server{
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }),
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{ca.pair}},
		Protocols: protocols,
	}}
	go func() {
		defer close(p.done)
		_ = p.ServeTLS(l, "", "")
	}()
	return p
}

func (p *process) kill() {
	_ = p.Close()
	<-p.done
}

// busy is the time for a real process's death and return on a busy machine; an idle one takes half
// a second. The tests in bubbles check the promised times to the millisecond. It is counted in
// moments, so that a time in which other processes have the processors counts as one.
const busy, moment = 2 * time.Second, 50 * time.Millisecond

func TestDeathAndReturnOfARealProcess(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2=%v", h2), func(t *testing.T) {
			ca := newAuthority(serverName)
			s := startProcess(t, "127.0.0.1:0", ca, h2)
			address := s.listener.Addr().String()
			reports := make(chan registry.Report, 10)
			f := newFeed(entry(address))
			p := must.Get(New(Config{
				Table:  func() Table { return new(registry.Table) },
				Report: func(r registry.Report) { reports <- r },
				Dial:   new(net.Dialer).DialContext,
				TLS:    func(string, *registry.Backend) (*tls.Config, error) { return &tls.Config{RootCAs: ca.roots}, nil },
			}))(t)
			p.config.Table = f.table
			defer must.Run(t, p.Run)()
			expect := func(want registry.Health, limit time.Duration) {
				t.Helper()
				from := time.Now()
				for range limit / moment {
					select {
					case r := <-reports:
						if r.Health != want {
							t.Fatalf("reported %+v, want health %d", r, want)
						}
						t.Logf("%d after %v", want, time.Since(from))
						return
					case <-time.After(moment):
					}
				}
				t.Fatalf("health %d not reported within %v", want, limit)
			}
			expect(registry.Healthy, 3*time.Second)
			for range 2 {
				s.kill()
				expect(registry.Unhealthy, busy)
				s = startProcess(t, address, ca, h2)
				expect(registry.Healthy, busy)
			}
			s.kill()
		})
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
		o, c := probeOnce(t, &registry.Backend{ServerName: serverName, HTTP1: true}, l.Addr().String(), func() (*tls.Config, error) {
			return &tls.Config{RootCAs: ca.roots}, nil
		})
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
