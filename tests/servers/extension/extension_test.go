package extension_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

const (
	widgets = "/apis/widgets.example.com/v1/namespaces/default/widgets"
	one     = widgets + "/widget-000"
)

// run runs f over both protocols.
func run(t *testing.T, name string, cfg extension.Config, f func(t *testing.T, s *extension.Server, c *http.Client)) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("%s, HTTP/2 %t", name, h2), func(t *testing.T) {
			t.Parallel()
			s := extension.Start(t, cfg)
			f(t, s, client(t, s, h2, nil))
		})
	}
}

func client(t *testing.T, s *extension.Server, h2 bool, pair *pki.Pair) *http.Client {
	t.Helper()
	c := s.TLS()
	c.NextProtos = nil
	if pair != nil {
		c.Certificates = []tls.Certificate{pair.TLS()}
	}
	transport := &http.Transport{TLSClientConfig: c, Protocols: ask.Only(h2), DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func got(t *testing.T, c *http.Client, method, url, body string, patience time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := ask.Do(ctx, c, method, url, nil, body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(r.Code, " ", r.Body)
}

const (
	long  = time.Minute            // for what is answered, also on a busy machine
	short = 300 * time.Millisecond // for what hangs
)

func TestRecord(t *testing.T) {
	front := pki.NewCA("front")
	leaf := pki.Leaf{CommonName: "front-proxy-client"}
	cfg := extension.Config{RequestHeaderCA: front.Pool(), AllowedNames: []string{leaf.CommonName}, RejectWith: 401, Record: 3}
	run(t, "what arrived", cfg, func(t *testing.T, s *extension.Server, _ *http.Client) {
		for name, pair := range map[string]*pki.Pair{"another CA": pki.NewCA("front").Issue(leaf), "another name": front.Issue(pki.Leaf{CommonName: "other"}), "none": nil} {
			out := got(t, client(t, s, true, pair), "GET", s.URL()+widgets, "", long)
			check.Same(t, true, strings.HasPrefix(out, "401") && !s.Requests()[0].Verified, "a certificate of %s: %s", name, out)
			s.Forget()
		}
		pair := front.Intermediate("between").Issue(leaf)
		target := widgets + "/a%2Fb/echo?b=2&a=%31;x&b=1&%zz"
		c := client(t, s, strings.HasSuffix(t.Name(), "true"), pair)
		for range 5 {
			r := must.Get(http.NewRequestWithContext(t.Context(), "POST", s.URL()+target, io.MultiReader(strings.NewReader("body"))))(t)
			r.Header, r.Trailer = http.Header{"X-Twice": {"one", "two"}, "X_under": {"u"}}, http.Header{"X-Check": {"yes"}}
			res := must.Get(c.Do(r))(t)
			check.Same(t, "body yes", string(must.Get(io.ReadAll(res.Body))(t))+" "+res.Trailer.Get("X-Check"), "what is echoed, and the trailer")
		}
		all := s.Requests()
		must.Be(t, len(all) == 3, "%d requests kept, want 3", len(all))
		got := all[0]
		if got.Target != target || got.Method != "POST" || !got.Verified || got.PeerName != leaf.CommonName || got.PeerSerial != pair.Certificate.SerialNumber.Text(16) {
			t.Errorf("recorded %+v", got)
		}
		check.Same(t, [3]any{2, "u", "yes"}, [3]any{len(got.Header["X-Twice"]), got.Header["X_under"][0], got.Trailer.Get("X-Check")}, "of the recorded fields")
	})
}

func TestRequestFaults(t *testing.T) {
	const reset, hung = "connection reset by peer", "deadline exceeded"
	for _, tt := range []struct {
		fault  extension.Fault
		h1, h2 string // in what the client got; h2 empty: same as h1
	}{
		{extension.Fault{Kind: extension.Hang}, hung, ""},
		{extension.Fault{Kind: extension.HangBody}, hung, ""},
		{extension.Fault{Kind: extension.Slow, Delay: time.Hour}, hung, ""},
		{extension.Fault{Kind: extension.SlowBody, Delay: time.Millisecond, Size: 100}, "200 " + strings.Repeat("x", 100), ""},
		{extension.Fault{Kind: extension.SlowBody, Delay: time.Hour}, hung, ""},
		{extension.Fault{Kind: extension.Reset}, reset, "INTERNAL_ERROR"},
		{extension.Fault{Kind: extension.ResetBody}, reset, "INTERNAL_ERROR"},
		{extension.Fault{Kind: extension.ResetConn}, reset, `Get "https://`},
		{extension.Fault{Kind: extension.Status}, "told to fail", ""},
		{extension.Fault{Kind: extension.Status, Code: 429}, "429 ", ""},
		{extension.Fault{Kind: extension.Redirect}, "307 ", ""},
		{extension.Fault{Kind: extension.HugeBody, Size: 1 << 20}, strings.Repeat("x", 1<<20) + `"`, ""},
		{extension.Fault{Kind: extension.Garbage}, "\x00\xff", ""},
		{extension.Fault{Kind: extension.EndlessHeaders, Size: 12 << 20}, "exceeded", "PROTOCOL_ERROR"},
		{extension.Fault{Kind: extension.InformationalFlood, Size: 1000}, "200 ", ""},
		{extension.Fault{Kind: extension.ShortBody}, "unexpected EOF", ""},
		{extension.Fault{Kind: extension.LongBody}, "200 " + strings.Repeat("x", 500), "more than declared"},
		{extension.Fault{Kind: extension.GoAway}, "200 ", ""},
		{extension.Fault{Kind: extension.GoAwayUnprocessed}, reset, hung}, // Go's client tries again for ever
		{extension.Fault{Kind: extension.BodyAfterReset}, "200 ok", "INTERNAL_ERROR"},
		{extension.Fault{Kind: extension.Unasked101}, "101 ", "INTERNAL_ERROR"},
		{extension.Fault{Kind: extension.Status, Code: 501, Path: "/other"}, "200 ", ""},
		{extension.Fault{Kind: extension.Status, Code: 501, Every: 2}, "200 ", ""}, // the second would fail
	} {
		run(t, string(tt.fault.Kind), extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
			must.Do(t, s.Set(tt.fault))
			want, patience := tt.h1, long
			if tt.h2 != "" && strings.HasSuffix(t.Name(), "true") {
				want = tt.h2
			}
			if want == hung {
				patience = short
			}
			if out := got(t, c, "GET", s.URL()+one, "", patience); !strings.Contains(out, want) {
				t.Errorf("%.300q, want %.100q", out, want)
			}
			must.Do(t, s.Set())
			fresh := client(t, s, true, nil) // the fault may have broken c's connection
			if out := got(t, fresh, "GET", s.URL()+one, "", long); !strings.HasPrefix(out, "200 ") {
				t.Errorf("afterwards: %.100q", out)
			}
		})
	}
}

// A client sends a request again that was announced as not processed: the announcement must be true
// for every request on the connection.
func TestGoAwayUnprocessedIsTrue(t *testing.T) {
	var mu sync.Mutex
	executed := map[string]int{}
	s := extension.Start(t, extension.Config{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			executed[r.URL.Path]++
			mu.Unlock()
			next.ServeHTTP(w, r)
		})
	}})
	must.Do(t, s.Set(extension.Fault{Kind: extension.GoAwayUnprocessed, Path: "/disowned"}))
	c := client(t, s, true, nil)
	var all sync.WaitGroup
	for i := range 150 {
		all.Go(func() { got(t, c, "POST", s.URL()+fmt.Sprint([]string{"/disowned/", "/"}[min(i%5, 1)], i), "x", long) })
	}
	must.Soon(t, long, "many requests", func() bool { return len(s.Requests()) > 50 })
	must.Do(t, s.Set())
	all.Wait()
	for path, n := range executed {
		check.Same(t, true, n <= 1, "%s was executed %d times", path, n)
	}
	check.Same(t, true, len(executed) >= 50, "%d requests were executed", len(executed))
}

func TestConnectionFaults(t *testing.T) {
	for kind, want := range map[extension.Kind]string{
		extension.Refuse: "connection refused", extension.Dead: "connection refused", extension.HangConnect: "deadline exceeded", extension.Freeze: "deadline exceeded",
		extension.WrongCA: "unknown authority", extension.WrongName: "not 127.0.0.1", extension.NoNames: "doesn't contain any IP SANs", extension.Expired: "expired",
		extension.NotYetValid: "not yet valid", extension.SHA1: "SHA1",
	} {
		run(t, string(kind), extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
			patience := long
			if want == "deadline exceeded" {
				patience = short
			}
			old := client(t, s, strings.HasSuffix(t.Name(), "true"), nil)
			got(t, old, "GET", s.URL()+"/healthz", "", long)
			must.Do(t, s.Set(extension.Fault{Kind: kind}))
			check.Has(t, got(t, c, "GET", s.URL()+"/healthz", "", patience), want)
			if kind != extension.Freeze {
				patience = long
			}
			out, ended := got(t, old, "GET", s.URL()+"/healthz", "", patience), kind == extension.Dead || kind == extension.Freeze
			check.Same(t, true, (out == "200 ok") != ended, "an open connection: %s", out)
			must.Do(t, s.Set())
			c.CloseIdleConnections()
			check.Same(t, "200 ok", got(t, c, "GET", s.URL()+"/healthz", "", long), "afterwards")
		})
	}
}
