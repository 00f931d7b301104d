package health

import (
	"fmt"
	"net/http/httputil"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// look takes a step that checks something:
//
//	healthy, unhealthy [N-M…] what was reported last about all APIServices at the first address, or some
//	hung                    that the first one's process does not run; unhealthy: it may
//	gone                    that the first one's server has no such group-version; unhealthy: it may
//	out, back <range>       the time until all are unhealthy, or healthy, from now on
//	reports <range>         in all
//	dials, requests <N> <range>   to the first address, or for an APIService, since the last mark
//	shared                  since then each connection was used for all APIServices, and for some light checks
//	every, pauses           between dials since then: each is in a range, and they differ; they begin so
//	paused <range>          before the last dial
//	hedged <range>          dials soon after another one
//	open <range>            connections to all addresses
//	together <range>        requests at most, of those that take time
//	says <reason> <text>    why the first APIService is unhealthy
//	last <range>            how long its last probe took, and that it ended as was reported
//	slow, even              the endpoint of the first APIService at the first address is slow, but never another
//	metrics, asked <file>   the series; the last request, and on which connection
func (w *world) look(words []string) bool {
	w.t.Helper()
	switch first := w.all[0]; words[0] {
	case "healthy", "unhealthy":
		w.lookAt(words[0] == "healthy", words[1:len(words)-1])
	case "hung":
		check.Same(w.t, true, w.of(first).Hung, "%s: hung", w.line)
	case "gone":
		check.Same(w.t, true, w.of(first).Gone, "%s: gone", w.line)
	case "out":
		w.until(registry.Unhealthy, words[1])
	case "back":
		w.until(registry.Healthy, words[1])
	case "reports":
		within(w, words[1], w.reports, "reports")
	case "dials":
		within(w, words[1], w.dials()-w.before, "connections")
	case "requests":
		within(w, words[2], w.requests[pathOf(w.all[w.value(words[1])])], "requests")
	case "shared":
		w.shared()
	case "every":
		pauses := w.pauses()
		for _, d := range pauses {
			within(w, words[1], d, "a pause")
		}
		check.Same(w.t, true, slices.Max(pauses)-slices.Min(pauses) >= time.Second, "%s: not spread: %v", w.line, pauses)
	case "pauses":
		for i, d := range w.pauses()[:len(words)-2] {
			within(w, words[i+1], d.Truncate(time.Millisecond), "pause %d", i)
		}
	case "paused":
		pauses := w.pauses()
		within(w, words[1], pauses[len(pauses)-1], "the last pause")
	case "hedged":
		within(w, words[1], len(slices.DeleteFunc(w.pauses(), func(d time.Duration) bool { return d > hedgeAfter })), "hedged")
	case "open":
		n := 0
		for _, h := range w.hosts {
			n += h.open()
		}
		within(w, words[1], n, "connections open")
	case "together":
		within(w, words[1], w.most, "requests at the same time")
	case "says":
		r := w.of(first)
		check.Same(w.t, strings.Join(words[1:len(words)-1], " "), r.Reason+" "+r.Message, "%s: why", w.line)
	case "last":
		r := w.of(first)
		ended, took, fault := w.Last(first.Name, at)
		within(w, words[1], took, "the last probe")
		check.Same(w.t, false, ended.Before(r.at) || ended.After(time.Now()) || fault != r.Message, "%s: the last probe ended at %v: %q; reported at %v: %q", w.line, ended, fault, r.at, r.Message)
		for name, address := range map[string]string{first.Name: "10.9.9.9:443", "v1.none": at} {
			ended, took, fault := w.Last(name, address)
			check.Same(w.t, true, ended.IsZero() && took == 0 && fault == "", "%s: %s at %s was never probed: %v, took %v: %q", w.line, name, address, ended, took, fault)
		}
	case "slow", "even":
		check.Same(w.t, words[0] == "slow", w.of(first).Slow, "%s: slow", w.line)
		w.everSlow[[2]string{first.Name, at}] = false
		for key, slow := range w.everSlow {
			check.Same(w.t, false, slow || w.newest[key].Health != registry.Healthy, "%s: %+v", w.line, w.newest[key])
		}
	case "metrics":
		want := strings.NewReader(w.tale.File(w.t, words[1]))
		must.Do(w.t, testutil.GatherAndCompare(w.metrics, want, "fairlead_endpoint_healthy", "fairlead_probe_total"))
	case "asked":
		head := must.Get(httputil.DumpRequest(w.request, false))(w.t)
		state := w.request.TLS
		got := fmt.Sprintf("%s%d certificate, for %s\n", strings.ReplaceAll(string(head), "\r", ""), len(state.PeerCertificates), state.ServerName)
		check.Same(w.t, w.tale.File(w.t, words[1]), got, "%s: the request", w.line)
	default:
		return false
	}
	return true
}

// lookAt compares what was reported last about APIServices, by default all.
func (w *world) lookAt(healthy bool, numbers []string) {
	w.t.Helper()
	entries := w.entries
	if len(numbers) > 0 {
		entries = nil
	}
	for _, n := range numbers {
		entries = append(entries, w.some(n)...)
	}
	for _, e := range entries {
		r := w.of(e)
		want := registry.Report{Name: e.Name, Backend: e.Backend, Endpoint: registry.Endpoint{Address: at, Health: registry.Healthy, Slow: r.Slow}, Began: r.Began, HTTP2: r.HTTP2}
		if !healthy {
			want.Health, want.Reason, want.Message = registry.Unhealthy, r.Reason, r.Message
		}
		check.Same(w.t, true, r.Report == want && (healthy || strings.Contains(r.Message, pathOf(e))), "%s: %+v", w.line, r)
	}
}

// until waits until all that is probed at the first address has a health, and compares the time.
func (w *world) until(want registry.Health, limits string) {
	w.t.Helper()
	_, most, _ := strings.Cut(limits, "..")
	from := time.Now()
	for synctest.Wait(); time.Since(from) <= time.Duration(w.value(most)); pass(10 * time.Millisecond) {
		took, all := time.Duration(0), true
		for _, e := range w.entries {
			if e.Endpoints[0].Address == at {
				r := w.of(e)
				took, all = max(took, r.at.Sub(from)), all && r.Health == want
			}
		}
		if all {
			within(w, limits, took, "it took")
			return
		}
	}
	w.t.Fatalf("%s: not within %s: %+v", w.line, most, w.newest)
}

// shared checks that every APIService was asked for on each connection, beside some light checks.
func (w *world) shared() {
	sum, dials := 0, w.dials()-w.before
	for _, e := range w.entries {
		n := w.requests[pathOf(e)]
		sum += n
		check.Same(w.t, true, n >= dials, "%s: %s was probed %d times over %d connections", w.line, e.Name, n, dials)
	}
	check.Within(w.t, dials, lightChecks*dials, sum-len(w.entries)*dials, "%s: light checks beside %d rounds", w.line, dials)
}

// within compares a number or a duration with a range.
func within[T int | time.Duration](w *world, want string, got T, format string, args ...any) {
	w.t.Helper()
	least, most, ok := strings.Cut(want, "..")
	if !ok {
		most = least
	}
	check.Same(w.t, false, least != "" && int64(got) < w.value(least) || most != "" && int64(got) > w.value(most), "%s: %s: %v, want %s", w.line, fmt.Sprintf(format, args...), got, want)
}

// dials counts the connections to the first address.
func (w *world) dials() int { return len(w.host(at).dialled()) }

// pauses returns the times between the dials there, since the last mark.
func (w *world) pauses() (all []time.Duration) {
	dials := w.host(at).dialled()[w.before:]
	for i := range len(dials) - 1 {
		all = append(all, dials[i+1].Sub(dials[i]))
	}
	return all
}
