package registry

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestAnnotations(t *testing.T) {
	defaults := (&Options{}).defaults()
	with := func(change func(*annotated)) annotated {
		s := annotated{settings: defaults}
		change(&s)
		return s
	}
	for _, tc := range []struct {
		name, value string
		want        annotated
		bad         string
	}{
		{name: "request-timeout", value: "90s", want: with(func(s *annotated) { s.settings.RequestTimeout = 90 * time.Second })},
		{name: "request-timeout", value: "10ms", bad: "10ms is outside 1s to 1h0m0s"},
		{name: "request-timeout", value: "90", bad: `"90" is not a duration such as 30s`},
		{name: "max-inflight", value: "7", want: with(func(s *annotated) { s.settings.MaxInFlight = 7 })},
		{name: "max-inflight", value: "1e3", bad: "not a whole number"},
		{name: "max-longrunning", value: "9", want: with(func(s *annotated) { s.settings.MaxLongRunning = 9 })},
		{name: "long-running-subresources", value: "console, vnc,console", want: with(func(s *annotated) {
			s.settings.LongRunningSubresources = []string{"console", "vnc"}
		})},
		{name: "long-running-subresources", value: "a/b", bad: "not the name of a subresource"},
		{name: "long-running-subresources", value: "", bad: "not the name of a subresource"},
		{name: "tls-server-name", value: "api.example.com", want: with(func(s *annotated) { s.serverName = "api.example.com" })},
		{name: "tls-server-name", value: "10.0.0.1", want: with(func(s *annotated) { s.serverName = "10.0.0.1" })},
		{name: "tls-server-name", value: "a b", bad: "neither"},
		{name: "ca-from", value: "bundle/ca.crt", want: with(func(s *annotated) { s.caFrom = "bundle/ca.crt" })},
		{name: "ca-from", value: "bundle", bad: "neither <configmap name>/<key> nor"},
		{name: "ca-from", value: "bundle/a b", bad: "neither <configmap name>/<key> nor"},
		{name: "ca-from", value: "../kube-system/x", bad: "neither <configmap name>/<key> nor"},
		{name: "ca-from", value: "a_b/ca.crt", bad: "neither <configmap name>/<key> nor"},
		{name: "ca-from", value: "clustertrustbundle/example.com:signer:name", want: with(func(s *annotated) { s.caFrom = "clustertrustbundle/example.com:signer:name" })},
		{name: "ca-from", value: "clustertrustbundle/a/ca.crt", bad: "nor clustertrustbundle/<name>"},
		{name: "ca-from", value: "clustertrustbundle/", bad: "nor clustertrustbundle/<name>"},
		{name: "ca-rotation-overlap", value: "0", want: with(func(s *annotated) { s.settings.CAOverlap = 0 })},
		{name: "probe-interval", value: "2s", want: with(func(s *annotated) { s.settings.ProbeInterval = 2 * time.Second })},
		{name: "tls-server-name", value: "fe80::1%,a.example.com", bad: "neither a DNS name nor"},
		{name: "ping-timeout", value: "1s", want: with(func(s *annotated) { s.settings.PingTimeout = time.Second })},
		{name: "http1", value: "true", want: with(func(s *annotated) { s.http1 = true })},
		{name: "http1", value: "false", want: with(func(*annotated) {})},
		{name: "http1", value: "yes", bad: "neither true nor false"},
		{name: "url", value: "https://b,https://a:1", want: with(func(s *annotated) { s.urls.addresses = []string{"a:1", "b:443"} })},
		{name: "url", value: "http://a", want: with(func(s *annotated) { s.urls.fault = `"http://a" is not https://<host> or https://<host>:<port>` })},
		{name: "maintenance", value: " back at noon ", want: with(func(s *annotated) { s.settings.Maintenance = "back at noon" })},
		{name: "maintenance", value: " ", bad: "empty"},
		{name: "maintenance", value: "a\nb", bad: "unprintable characters"},
		{name: "owner", value: "team metrics", want: with(func(s *annotated) { s.settings.Owner = "team metrics" })},
		{name: "reqest-timeout", value: "90s", bad: "unknown name"},
	} {
		got := readAnnotations(map[string]string{prefix + tc.name: tc.value, "example.com/other": "x"}, defaults)
		if tc.bad != "" {
			check.Same(t, 1, len(got.problems), "%s=%q: problems", tc.name, tc.value)
			check.Has(t, strings.Join(got.problems, "; "), tc.bad, prefix+tc.name)
			got.problems, tc.want = nil, with(func(*annotated) {}) // what is invalid changes nothing
		}
		check.Same(t, "", cmp.Diff(tc.want, got, cmp.AllowUnexported(annotated{}, urls{}), cmpopts.EquateEmpty()), "%s=%q", tc.name, tc.value)
	}
}

// Bounds are part of what they bound.
func TestBounds(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	names := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprint("n", i)
		}
		return strings.Join(list, ",")
	}
	for _, tc := range []struct{ name, below, low, high, above string }{
		{"request-timeout", "999ms", "1s", "1h", "1h1ns"},
		{"max-inflight", "0", "1", "100000", "100001"},
		{"max-longrunning", "0", "1", "1000000", "1000001"},
		{"long-running-subresources", "", names(1), names(maxSubresources), names(maxSubresources + 1)},
		{"ca-rotation-overlap", "-1ns", "0s", "24h", "24h1ns"},
		{"probe-interval", "999ms", "1s", "10m", "10m1ns"},
		{"ping-timeout", "499ms", "500ms", "5m", "5m1ns"},
		{"maintenance", "", text(1), text(maxMessage), text(maxMessage + 1)},
		{"owner", "", text(1), text(maxOwner), text(maxOwner + 1)},
	} {
		for value, want := range map[string]int{tc.below: 1, tc.low: 0, tc.high: 0, tc.above: 1} {
			s := readAnnotations(map[string]string{prefix + tc.name: value}, Settings{})
			check.Same(t, want, len(s.problems), "%s=%.20q: problems", tc.name, value)
		}
	}
}

// Each problem is a line of log.
func TestManyFaultyAnnotations(t *testing.T) {
	many := make(map[string]string)
	for i := range maxProblems + 7 {
		many[fmt.Sprint(prefix, i)] = ""
	}
	problems := readAnnotations(many, Settings{}).problems
	check.Same(t, "more annotations are ignored, too", problems[len(problems)-1], "the last of %d problems", len(problems))
	check.Same(t, maxProblems+1, len(problems), "problems")
}

// Untrusted text is cut in messages, between characters.
func TestBounded(t *testing.T) {
	x := strings.Repeat("x", 62)
	for text, want := range map[string]string{x + "xx": x + "xx", x + "xxx": x + "xx…", x + "xé": x + "x…"} {
		check.Same(t, want, bounded(text), "%q", text)
	}
}

func TestDefaults(t *testing.T) {
	got := (&Options{Defaults: Settings{CAOverlap: -1, MaxInFlight: 3}}).defaults()
	want := Settings{
		RequestTimeout: time.Minute, MaxInFlight: 3, MaxLongRunning: 10_000, ProbeInterval: 10 * time.Second, PingTimeout: 5 * time.Second,
	}
	check.Same(t, want, got, "defaults")
	check.Same(t, 400, (&Options{}).defaults().MaxInFlight, "requests in flight")
	check.Same(t, time.Minute, (&Options{}).defaults().CAOverlap, "overlap")
}

// FuzzAnnotations checks that no value sets anything outside its bounds, and that every ignored value is reported.
func FuzzAnnotations(f *testing.F) {
	names := []string{
		"request-timeout", "max-inflight", "max-longrunning", "long-running-subresources", "tls-server-name", "ca-from",
		"ca-rotation-overlap", "probe-interval", "ping-timeout", "http1", "maintenance", "url", "owner", "other",
	}
	for i := range names {
		f.Add(i, "1s")
		f.Add(i, "true")
		f.Add(i, "a,b")
		f.Add(i, "a/b")
		f.Add(i, "https://a,https://b:1")
		f.Add(i, "99999999999999999999")
	}
	defaults := (&Options{}).defaults()
	f.Fuzz(func(t *testing.T, i int, value string) {
		name := names[uint(i)%uint(len(names))]
		s := readAnnotations(map[string]string{prefix + name: value}, defaults)
		p := s.settings
		switch {
		case p.RequestTimeout < time.Second || p.RequestTimeout > time.Hour,
			p.MaxInFlight < 1 || p.MaxInFlight > 100_000,
			p.MaxLongRunning < 1 || p.MaxLongRunning > 1_000_000,
			len(p.LongRunningSubresources) > maxSubresources,
			p.CAOverlap < 0 || p.CAOverlap > 24*time.Hour,
			p.ProbeInterval < time.Second || p.ProbeInterval > 10*time.Minute,
			p.PingTimeout < 500*time.Millisecond || p.PingTimeout > 5*time.Minute,
			len(p.Maintenance) > maxMessage || strings.ContainsAny(p.Maintenance, "\r\n\x00"),
			len(p.Owner) > maxOwner || strings.ContainsAny(p.Owner, "\r\n\x00"),
			strings.Count(s.caFrom, "/") > 1, strings.ContainsAny(s.serverName, " /\x00"):
			t.Errorf("%s=%q gives %+v", name, value, s)
		}
		check.Same(t, false, len(s.problems) > 1 || len(s.problems) == 1 && len(s.problems[0]) > 400, "%s=%q: problems %q", name, value, s.problems)
	})
}

func TestURLs(t *testing.T) {
	const a = "https://a.example.com"
	for _, tt := range []struct {
		value  string
		want   string // addresses, comma-separated
		called string // ServerName
	}{
		{"https://api.example.com", "api.example.com:443", "api.example.com"},
		{"https://API.Example.com:8443", "api.example.com:8443", "api.example.com"},
		{"https://10.0.0.1:1", "10.0.0.1:1", "10.0.0.1"},
		{"https://[2001:db8::1]", "[2001:db8::1]:443", "2001:db8::1"},
		{"https://[2001:DB8::1]:65535", "[2001:db8::1]:65535", "2001:db8::1"},
		{
			" https://b.example.com, https://a.example.com:2 ,https://a.example.com:1",
			"a.example.com:1,a.example.com:2,b.example.com:443", "a.example.com,b.example.com",
		},
		{a + ",https://a.example.com:443,https://A.example.com", "a.example.com:443", "a.example.com"},
		{strings.Repeat(a+",", maxURLs-1) + a, "a.example.com:443", "a.example.com"},
	} {
		u := readURLs(tt.value)
		b := u.backend()
		check.Same(t, [3]string{tt.want, "", tt.called}, [3]string{strings.Join(u.addresses, ","), u.fault, b.ServerName}, "%q: addresses, fault and name", tt.value)
		check.Same(t, u.addresses, readURLs(b.URLs).addresses, "%q, shown as %s", tt.value, b.URLs)
		for _, a := range u.addresses {
			host, _, _ := net.SplitHostPort(a)
			check.Same(t, host, b.NameAt(a), "the name that %s is sent, of %q", a, tt.value)
		}
	}
	for bad, values := range map[string][]string{
		`"" is not https://`: {"", ",", a + ","},
		"is not https://": {
			"HTTPS://a.example.com", "unix:///run/a.sock", "//a.example.com", "a.example.com:443", "https:a.example.com",
			a + "/", a + "/apis", a + "?", a + "?x=y", a + "#", a + "#x", a + "\\@b.example.com", a + "\r\nX: y", a + ":https", a + ":-1",
			"https://me@a.example.com", "https://me:secret@a.example.com", "https://@a.example.com", "https://%61.example.com",
			"https://[fe80::1%25eth0]", "https://2001:db8::1", "https://ä.example.com", "https://a b",
			"https://\u212aubernetes.example.com", // the Kelvin sign, which becomes a k in lower case
		},
		`"http://a.example.com" is not https://`: {"http://a.example.com"},
		"neither a DNS name nor an IP address":   {"https://", "https://:443", a + ".", "https://*.example.com", "https://" + strings.Repeat("a", 300)},
		`"a_b.example.com" is neither`:           {"https://a_b.example.com"},
		"outside 1 to 65535":                     {a + ":0", a + ":65536", a + ":99999999999999999999"},
		"more than 32 URLs":                      {strings.Repeat(a+",", maxURLs) + a},
	} {
		for _, value := range values {
			u := readURLs(value)
			check.Same(t, true, strings.Contains(u.fault, bad) && len(u.addresses) == 0 && u.given() && len(u.fault) <= 200, "%q: %+v, want %q", value, u, bad)
		}
	}
}

// FuzzURLs checks that Fairlead dials the host and port that a reader sees in a URL, and accepts nothing ambiguous.
func FuzzURLs(f *testing.F) {
	for _, s := range []string{
		"https://a.example.com", "https://[::1]:8443,https://10.0.0.1", "https://a@b", "https://a/b", "https://a:0", "https://a?b#c", "https://%61", "https://[::ffff:7f00:1%25x]:1", "https://127.1", ",",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		u := readURLs(value)
		must.Be(t, (u.fault == "") == (len(u.addresses) > 0) && len(u.addresses) <= maxURLs && len(u.fault) <= 400 && !strings.ContainsAny(u.fault, "\r\n\x00"), "%q: %+v", value, u)
		var want []string
		for text := range strings.SplitSeq(value, ",") {
			parsed, err := url.Parse(strings.TrimSpace(text))
			if u.fault != "" {
				return
			}
			must.Be(t, err == nil && parsed.Scheme == "https" && parsed.User == nil && parsed.Path+parsed.RawQuery+parsed.Fragment+parsed.Opaque == "", "%q is accepted in %q", text, value)
			port := parsed.Port()
			if port == "" {
				port = "443"
			}
			n, err := strconv.ParseUint(port, 10, 16)
			must.Be(t, err == nil && n > 0, "%q is accepted with that port", text)
			host := strings.ToLower(parsed.Hostname())
			addr, err := netip.ParseAddr(host)
			must.Be(t, err == nil && addr.Zone() == "" || len(validation.IsDNS1123Subdomain(host)) == 0, "%q is accepted with that host", text)
			want = append(want, net.JoinHostPort(host, strconv.FormatUint(n, 10)))
		}
		slices.Sort(want)
		check.Same(t, slices.Compact(want), u.addresses, "addresses of %q", value)
	})
}
