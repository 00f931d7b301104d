package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
		if tc.bad == "" {
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(annotated{}, urls{}), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%s=%q (-want +got):\n%s", tc.name, tc.value, d)
			}
			continue
		}
		if len(got.problems) != 1 || !strings.Contains(got.problems[0], tc.bad) || !strings.Contains(got.problems[0], prefix+tc.name) {
			t.Errorf("%s=%q: problems %q, want one with %q", tc.name, tc.value, got.problems, tc.bad)
		}
		got.problems = nil
		if d := cmp.Diff(annotated{settings: defaults}, got, cmp.AllowUnexported(annotated{}, urls{}), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s=%q is invalid but changes (-want +got):\n%s", tc.name, tc.value, d)
		}
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
	given := []string{"console"}
	got = (&Options{Defaults: Settings{LongRunningSubresources: given}}).defaults()
	given[0] = "changed later"
	check.Same(t, []string{"console"}, got.LongRunningSubresources, "long-running subresources, which no caller may change")
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
		if len(s.problems) > 1 || len(s.problems) == 1 && len(s.problems[0]) > 400 {
			t.Errorf("%s=%q: problems %q", name, value, s.problems)
		}
	})
}
