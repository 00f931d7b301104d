package extension_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// outcome is what a client observed.
type outcome struct {
	code int
	body string
	err  error
}

func TestRequestFaults(t *testing.T) {
	failed := func(text string) func(outcome) bool {
		return func(o outcome) bool { return o.err != nil && strings.Contains(o.err.Error(), text) }
	}
	status := func(code int, text string) func(outcome) bool {
		return func(o outcome) bool { return o.err == nil && o.code == code && strings.Contains(o.body, text) }
	}
	hung := func(o outcome) bool { return errors.Is(o.err, context.DeadlineExceeded) }
	either := func(a, b func(outcome) bool) func(outcome) bool { return func(o outcome) bool { return a(o) || b(o) } }
	tests := []struct {
		fault  extension.Fault
		h1, h2 func(outcome) bool // h2 nil: same as h1
	}{
		{extension.Fault{Kind: extension.Hang}, hung, nil},
		{extension.Fault{Kind: extension.HangBody}, hung, nil},
		{extension.Fault{Kind: extension.Slow, Delay: time.Hour}, hung, nil},
		{extension.Fault{Kind: extension.Slow, Delay: time.Millisecond}, status(200, "widget-000"), nil},
		{extension.Fault{Kind: extension.SlowBody, Delay: time.Millisecond, Size: 100}, status(200, strings.Repeat("x", 100)), nil},
		{extension.Fault{Kind: extension.SlowBody, Delay: time.Hour}, hung, nil},
		{extension.Fault{Kind: extension.Reset}, failed("reset"), failed("INTERNAL_ERROR")},
		{extension.Fault{Kind: extension.ResetBody}, either(failed("reset"), failed("EOF")), failed("INTERNAL_ERROR")},
		{extension.Fault{Kind: extension.ResetConn}, either(failed("reset"), failed("EOF")), nil},
		{extension.Fault{Kind: extension.Status}, status(500, "told to fail"), nil},
		{extension.Fault{Kind: extension.Status, Code: 429, Text: "calm"}, status(429, "calm"), nil},
		{extension.Fault{Kind: extension.Redirect}, status(307, ""), nil},
		{extension.Fault{Kind: extension.HugeBody, Size: 1 << 20}, status(200, strings.Repeat("x", 1<<20)+`"`), nil},
		{extension.Fault{Kind: extension.Garbage}, status(200, "\x00\xff"), nil},
		{extension.Fault{Kind: extension.EndlessHeaders, Size: 12 << 20}, failed("exceeded"), failed("")},
		{extension.Fault{Kind: extension.InformationalFlood, Size: 1000}, status(200, "widget-000"), nil},
		{extension.Fault{Kind: extension.ShortBody}, failed("EOF"), nil},
		{extension.Fault{Kind: extension.LongBody}, status(200, strings.Repeat("x", 500)), failed("")},
		{extension.Fault{Kind: extension.GoAway}, status(200, "widget-000"), nil},
		{extension.Fault{Kind: extension.BodyAfterReset}, status(200, "ok"), failed("INTERNAL_ERROR")},
		{extension.Fault{Kind: extension.Unasked101}, status(101, ""), failed("INTERNAL_ERROR")},
	}
	for _, tt := range tests {
		run(t, extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
			want := tt.h1
			if tt.h2 != nil && strings.Contains(t.Name(), "HTTP/2.0") {
				want = tt.h2
			}
			must.Do(t, s.Set(tt.fault))
			if got := try(t, c, s.URL()+widgets+"/widget-000", patience(tt.fault)); !want(got) {
				t.Errorf("%s: status %d, body %.100q, error %v", tt.fault.Kind, got.code, got.body, got.err)
			}
			if rec := s.Requests(0); len(rec) == 0 || rec[0].Fault != tt.fault.Kind {
				t.Errorf("recorded %+v", rec)
			}
			must.Do(t, s.Set())
			fresh := client(t, s, "HTTP/2.0", nil) // the fault may have broken c's connection
			if res, b := ask(t, fresh, "GET", s.URL()+widgets+"/widget-000", nil); res.StatusCode != 200 {
				t.Errorf("after %s: status %d, body %.100q", tt.fault.Kind, res.StatusCode, b)
			}
		})
	}
}

func patience(f extension.Fault) time.Duration {
	switch f.Kind {
	case extension.Hang, extension.HangBody, extension.HangConnect, extension.Freeze:
		return 300 * time.Millisecond
	}
	if f.Delay == time.Hour {
		return 300 * time.Millisecond
	}
	return 10 * time.Second
}

// try gives up after patience: short if no answer is expected, long if a busy machine may need the
// time.
func try(t *testing.T, c *http.Client, url string, patience time.Duration) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, b, err := request(ctx, c, "GET", url, nil)
	out := outcome{body: string(b), err: err}
	if res != nil {
		out.code = res.StatusCode
	}
	return out
}

func TestFaultsOfDiscovery(t *testing.T) {
	const v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	for _, code := range []int{0, 403, 406} {
		run(t, extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
			must.Do(t, s.Set(extension.Fault{Kind: extension.NoAggregated, Code: code}))
			want := code
			if want == 0 {
				want = 404
			}
			if res, _ := ask(t, c, "GET", s.URL()+"/apis", nil, "Accept", v2); res.StatusCode != want {
				t.Errorf("aggregated: %d, want %d", res.StatusCode, want)
			}
			if res, _ := ask(t, c, "GET", s.URL()+"/apis", nil, "Accept", "application/json"); res.StatusCode != 200 {
				t.Errorf("legacy: %d, want 200", res.StatusCode)
			}
		})
	}
}

func TestWhichRequests(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	c := client(t, s, "HTTP/2.0", nil)
	must.Do(t, s.Set(
		extension.Fault{Kind: extension.Status, Code: 501, Method: "POST"},
		extension.Fault{Kind: extension.Status, Code: 502, Path: widgets, Every: 3},
	))
	for i, r := range []struct {
		method, path string
		want         int
	}{{"POST", widgets, 501}, {"GET", widgets, 200}, {"GET", widgets, 200}, {"GET", widgets, 502}, {"GET", widgets, 200}, {"GET", "/healthz", 200}} {
		if res, _ := ask(t, c, r.method, s.URL()+r.path, nil); res.StatusCode != r.want {
			t.Errorf("request %d: status %d, want %d", i, res.StatusCode, r.want)
		}
	}
}

func TestConnectionFaults(t *testing.T) {
	tests := []struct {
		kind extension.Kind
		want string
	}{
		{extension.Refuse, "connection refused"},
		{extension.Dead, "connection refused"},
		{extension.HangConnect, "deadline exceeded"},
		{extension.Freeze, "deadline exceeded"},
		{extension.WrongCA, "unknown authority"},
		{extension.WrongName, "not 127.0.0.1"},
		{extension.NoNames, "doesn't contain any IP SANs"},
		{extension.Expired, "expired"},
		{extension.NotYetValid, "not yet valid"},
		{extension.SHA1, "SHA1"},
	}
	for _, tt := range tests {
		run(t, extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
			must.Do(t, s.Set(extension.Fault{Kind: tt.kind}))
			if got := try(t, c, s.URL()+"/healthz", patience(extension.Fault{Kind: tt.kind})); got.err == nil || !strings.Contains(got.err.Error(), tt.want) {
				t.Errorf("%s: %v, want %s", tt.kind, got.err, tt.want)
			}
			must.Do(t, s.Set())
			c.CloseIdleConnections()
			if res, _ := ask(t, c, "GET", s.URL()+"/healthz", nil); res.StatusCode != 200 {
				t.Errorf("after %s: status %d", tt.kind, res.StatusCode)
			}
		})
	}
}

// An open connection survives Refuse, but not Dead, and continues after Freeze.
func TestOpenConnections(t *testing.T) {
	tests := []struct {
		kind  extension.Kind
		want  func(error) bool
		reuse bool // the same connection serves the request after the fault
	}{
		{extension.Refuse, func(err error) bool { return err == nil }, true},
		{extension.Freeze, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }, false},
		{extension.Dead, func(err error) bool {
			return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
		}, false},
	}
	for _, tt := range tests {
		run(t, extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
			ask(t, c, "GET", s.URL()+"/healthz", nil)
			must.Do(t, s.Set(extension.Fault{Kind: tt.kind}))
			if got := try(t, c, s.URL()+"/healthz", patience(extension.Fault{Kind: tt.kind})); !tt.want(got.err) {
				t.Errorf("%s: %v", tt.kind, got.err)
			}
			must.Do(t, s.Set())
			reused := false
			trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}
			if _, _, err := request(httptrace.WithClientTrace(t.Context(), trace), c, "GET", s.URL()+"/healthz", nil); err != nil {
				t.Errorf("after %s: %v", tt.kind, err)
			}
			if tt.reuse && !reused {
				t.Errorf("after %s: the connection was not reused", tt.kind)
			}
		})
	}
}

func TestProtocolsOff(t *testing.T) {
	for _, tt := range []struct {
		cfg   extension.Config
		fault []extension.Fault
		want  string
	}{
		{extension.Config{NoHTTP1: true}, nil, "h2"},
		{extension.Config{}, []extension.Fault{{Kind: extension.HTTP2Only}}, "h2"},
		{extension.Config{}, []extension.Fault{{Kind: extension.HTTP1Only}}, "http/1.1"},
	} {
		s := extension.Start(t, tt.cfg)
		must.Do(t, s.Set(tt.fault...))
		conn := must.Get((&tls.Dialer{Config: s.TLS()}).DialContext(t.Context(), "tcp", s.Addr()))(t)
		if got := conn.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != tt.want {
			t.Errorf("%v: negotiated %q, want %q", tt.fault, got, tt.want)
		}
		conn.Close()
	}
}

// A closed port stays reserved: no other process can listen on it, and it reopens at once.
func TestPortIsHeld(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	for range 20 {
		must.Do(t, s.Set(extension.Fault{Kind: extension.Dead}))
		if _, err := net.Dial("tcp", s.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dialling a dead server: %v", err)
		}
		must.Do(t, s.Set())
		must.Get(net.Dial("tcp", s.Addr()))(t).Close()
	}
}

// A request smuggled behind a refused upgrade arrives, and is recorded, as a separate request.
func TestSecondRequestIsSeen(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	must.Do(t, s.Set(extension.Fault{Kind: extension.Status, Code: 403, Path: widgets + "/w/exec"}))
	conn := dialH1(t, s)
	_, _ = io.WriteString(conn, "GET "+widgets+"/w/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-ReMote-User: Admin\r\nConnection: close\r\n\r\n")
	must.Get(io.ReadAll(conn))(t)
	all := s.Requests(0)
	if len(all) != 2 || all[1].Target != "/healthz" || all[1].Conn != all[0].Conn {
		t.Fatalf("recorded %+v", all)
	}
	if f := all[1].Fields; len(f) != 3 || f[1].Name != "X-ReMote-User" || f[1].Value != "Admin" {
		t.Errorf("fields %v, want them as on the wire", f)
	}
}

func dialH1(t *testing.T, s *extension.Server) net.Conn {
	t.Helper()
	cfg := s.TLS()
	cfg.NextProtos = []string{"http/1.1"}
	conn := must.Get((&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", s.Addr()))(t)
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn
}
