package proxy

import (
	"crypto/x509"
	"io"
	"net/http"
	"testing"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const (
	a = "a.example.com"
	b = "b.example.com"
	c = "c.example.com"
)

// APIServices with the same Service and trust share connections; others, with another trust, server
// name or port, do not use them.
func TestSharedConnections(t *testing.T) {
	t.Parallel()
	s := newStreet(t, a, b, c)
	wide := append(s.serving.PEM(), pki.NewCA("other").PEM()...)
	s.homes["trust.example.com"] = &neighbour{bundle: wide}
	s.homes["trust2.example.com"] = &neighbour{bundle: wide}
	s.homes["order.example.com"] = &neighbour{bundle: append(pki.NewCA("third").PEM(), s.serving.PEM()...)}
	s.homes["name.example.com"] = &neighbour{annotations: map[string]string{"fairlead.dev/tls-server-name": "127.0.0.1"}}
	s.homes["port.example.com"] = &neighbour{port: 8443}
	s.homes["ping.example.com"] = &neighbour{annotations: map[string]string{"fairlead.dev/ping-timeout": "9s"}}
	s.apply()
	used := map[string]string{s.shared(a, b, c): "a, b, c", s.shared("trust.example.com", "trust2.example.com"): "trust"}
	check.Same(t, 2, len(used), "connections, one for each trust")
	for _, g := range []string{"order.example.com", "name.example.com", "port.example.com", "ping.example.com"} {
		for range 3 { // the first may use net/http, to learn the backend's protocol
			if at := s.conn(g); used[at] != "" && used[at] != g {
				t.Errorf("%s uses a connection of %s", g, used[at])
			} else {
				used[at] = g
			}
		}
	}
}

// A new APIService uses the existing connections.
func TestSharedJoin(t *testing.T) {
	t.Parallel()
	s := newStreet(t, a)
	s.conn(a) // learns the backend's protocol
	first := s.conn(a)
	watch := s.open(things(a) + "?watch=1")
	s.homes[b] = &neighbour{}
	s.apply()
	if s.conn(b) != first || s.conn(a) != first {
		t.Error("equal backends have different connections")
	}
	s.goesOn("that had begun before", watch)
}

// An APIService that changes its bundle uses a connection verified by the new one. Its watches end
// if the new bundle does not verify the old connection. Its neighbours are unaffected.
func TestSharedTrustChanges(t *testing.T) {
	t.Parallel()
	s := newStreet(t, a, b, c)
	shared := s.shared(a, b, c)
	stays, grows, ends := s.open(things(a)+"?watch=1"), s.open(things(b)+"?watch=1"), s.open(things(c)+"?watch=1")
	s.homes[b].bundle = append(s.serving.PEM(), pki.NewCA("next").PEM()...)
	s.homes[c].bundle = pki.NewCA("hijacker").PEM()
	s.apply()
	if got := s.conn(b); got == shared {
		t.Error("an APIService with a new bundle still uses the connection of its old one")
	}
	if res := s.open(things(c)); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a bundle that does not verify the backend: %d", res.StatusCode)
	}
	check.Same(t, shared, s.conn(a), "a neighbour's connection")
	s.ends("whose trust has ended", ends)
	s.goesOn("of the neighbour", stays)
	s.goesOn("that the new bundle trusts, too", grows)
}

// A connection verified by a replaced CA serves only APIServices that still trust that CA. One that
// trusts only the new CA never uses it: neither during the overlap, nor afterwards, when both have
// one Backend.
func TestOverlapIsNobodyElses(t *testing.T) {
	t.Parallel()
	s := newStreet(t, a, b)
	shared := s.shared(a, b)
	next := pki.NewCA("next").PEM()
	s.homes[a].bundle, s.homes[a].annotations = next, map[string]string{"fairlead.dev/ca-rotation-overlap": "2s"}
	s.overlap(a, true)
	s.apply()
	if got := s.conn(a); got == shared {
		t.Error("an APIService in its overlap uses the connection of its old bundle")
	}
	own, neighbours := s.open(things(a)+"?watch=1"), s.open(things(b)+"?watch=1")
	s.homes[c] = &neighbour{bundle: next}
	s.apply()
	refused := func(when, group string) {
		t.Helper()
		for range 3 {
			if res := s.open(things(group)); res.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%s: %s: status %d from a server that its bundle does not verify", when, group, res.StatusCode)
			}
		}
	}
	refused("during the overlap of a neighbour", c)
	if at := s.conn(a); at == shared {
		t.Error("back on a connection that its bundle does not verify")
	}
	s.overlap(a, false)
	s.later = 2 * time.Second
	s.apply()
	refused("after the overlap", c)
	refused("after the overlap", a)
	s.ends("whose trust has ended with the overlap", own)
	s.goesOn("of the neighbour", neighbours)
	check.Same(t, shared, s.conn(b), "a neighbour's connection")
}

// The end of trust in one connection, for example because the certificate that its server presented
// has expired, ends nothing on another one to the same endpoint.
func TestTrustOfOneConnection(t *testing.T) {
	t.Parallel()
	guards, more := make(chan chan struct{}, 10), make(chan struct{})
	w := newWorld(t, worldConfig{guard: func(string, *registry.Backend, []*x509.Certificate) (<-chan struct{}, func()) {
		lost := make(chan struct{})
		guards <- lost
		return lost, func() {}
	}, remote: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "last" {
			w.Header().Set("Connection", "close") // GOAWAY: the next request needs another connection
			return
		}
		_, _ = io.WriteString(w, "ok")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-more:
			_, _ = io.WriteString(w, " more")
		}
	}})
	c := w.httpClient(t, "h2", nil)
	open := func(path string) *http.Response {
		t.Helper()
		res := must.Get(c.Do(w.as(t, "bob", "GET", remoteGV+path, nil)))(t)
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	open("/widgets?last") // learns the backend's protocol
	for len(guards) > 0 {
		<-guards
	}
	ends := open("/widgets?watch=1")
	lost := <-guards
	open("/widgets?last")
	stays := []*http.Response{open("/widgets?watch=2"), open("/widgets/a/proxy/dump?x")}
	<-guards
	close(lost)
	if body, err := io.ReadAll(ends.Body); err != nil || string(body) != "ok" {
		t.Errorf("the watch without trust: %q, %v", body, err)
	}
	close(more)
	for _, res := range stays {
		if body, err := io.ReadAll(res.Body); err != nil || string(body) != "ok more" {
			t.Errorf("%s on a trusted connection: %q, %v", res.Request.URL, body, err)
		}
	}
}

// An APIService changes its target while requests are under way: those that were sent are answered,
// later ones reach the new target.
func TestSharedRetarget(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*neighbour){
		"port":         func(h *neighbour) { h.port = 8443 },
		"server name":  func(h *neighbour) { h.annotations = map[string]string{"fairlead.dev/tls-server-name": "127.0.0.1"} },
		"ping timeout": func(h *neighbour) { h.annotations = map[string]string{"fairlead.dev/ping-timeout": "9s"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStreet(t, a, b, c)
			shared := s.shared(a, b, c)
			neighbours := s.open(things(b) + "?watch=1")
			under := make(chan string, 1)
			go func() {
				res := s.open(things(a) + "?hang=1")
				body, err := io.ReadAll(res.Body)
				under <- string(body) + " " + http.StatusText(res.StatusCode)
				if err != nil {
					t.Error(err)
				}
			}()
			<-s.hung
			change(s.homes[a])
			s.apply()
			for range 3 {
				if got := s.conn(a); got == shared {
					t.Error("still uses the shared connection")
				}
			}
			close(s.free)
			check.Same(t, "ok OK", <-under, "the request that was under way")
			if s.conn(b) != shared || s.conn(c) != shared {
				t.Error("a neighbour lost its connection")
			}
			s.goesOn("of a neighbour", neighbours)
		})
	}
}

// An APIService with a URL shares connections with those of the same URL, not with those of a
// Service, even if both have the same address. With an invalid URL it is unavailable, despite open
// connections.
func TestSharedByURL(t *testing.T) {
	t.Parallel()
	s := newStreet(t, a, b, c)
	shared := s.shared(a, b)
	input := s.config.also
	s.config.also = func(in *registry.Input) { input(in); in.Options.AllowURLs = true }
	name := func(g, url string) {
		s.homes[g].annotations = map[string]string{"fairlead.dev/url": url}
		s.apply()
	}
	stays := s.open(things(b) + "?watch=1")
	url := "https://" + s.remote.Listener.Addr().String()
	name(a, url)
	name(c, " "+url+","+url)
	byURL := s.shared(a, c)
	if byURL == shared || s.conn(b) != shared {
		t.Error("an APIService with a URL and one with a Service share a connection")
	}
	s.homes[a].annotations = nil
	s.apply()
	if s.shared(a, b) != shared || s.conn(c) != byURL {
		t.Error("without the annotation it does not use its former connection")
	}
	name(c, url+"/")
	for range 3 {
		if res := s.open(things(c)); res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("with an invalid URL: status %d", res.StatusCode)
		}
	}
	s.closes("that nobody shares any more", byURL)
	s.goesOn("of the neighbour", stays)
}

// Deleting an APIService ends its own watches. Deleting the last one that shares a connection
// closes it.
func TestSharedMemberGoes(t *testing.T) {
	t.Parallel()
	s := newStreet(t, a, b)
	shared := s.shared(a, b)
	goes, stays := s.open(things(a)+"?watch=1"), s.open(things(b)+"?watch=1")
	delete(s.homes, a)
	s.apply()
	check.Same(t, shared, s.conn(b), "the connection after one of the APIServices that shared it has gone")
	s.ends("of one that was deleted", goes)
	s.goesOn("of its neighbour", stays)
	last := s.open(things(b) + "?watch=1")
	delete(s.homes, b)
	s.config.change = func(a *apiregistrationv1.APIService) { a.Spec.CABundle = pki.NewCA("other").PEM() }
	s.apply()
	s.ends("of the last one", last)
	s.closes("that nobody shares any more", shared)
}

// Each APIService has its own limits, even on shared connections.
func TestSharedLimits(t *testing.T) {
	t.Parallel()
	s := newStreet(t, a, b)
	s.homes[a].annotations = map[string]string{"fairlead.dev/max-inflight": "1", "fairlead.dev/max-longrunning": "1"}
	s.apply()
	shared := s.shared(a, b)
	done := make(chan struct{})
	go func() { defer close(done); s.open(things(a) + "?hang=1").Body.Close() }()
	<-s.hung
	s.open(things(a) + "?watch=1")
	for _, query := range []string{"", "?watch=1"} {
		if res := s.open(things(a) + query); res.StatusCode != http.StatusTooManyRequests {
			t.Errorf("at its limit: status %d %s", res.StatusCode, query)
		}
		for range 3 {
			if res := s.open(things(b) + query); res.StatusCode != http.StatusOK {
				t.Errorf("its neighbour: status %d %s", res.StatusCode, query)
			}
		}
	}
	check.Same(t, shared, s.conn(b), "a neighbour's connection")
	close(s.free)
	<-done
}

// An endpoint that is ejected for one APIService still serves another one with its own verdict:
// only requests of the first one that wait for the endpoint are moved.
func TestSharedEjection(t *testing.T) {
	t.Parallel()
	testSharedEjection(t, false)
}

// So it is for requests whose connections have been drained meanwhile, by a rotation.
func TestSharedEjectionAfterRotation(t *testing.T) {
	t.Parallel()
	testSharedEjection(t, true)
}

func testSharedEjection(t *testing.T, rotate bool) {
	s := newStreet(t, a, b)
	s.shared(a, b)
	close(s.free) // the first answers at once
	arrived, free := make(chan struct{}, 8), make(chan struct{})
	second := s.another(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "hang=1" {
			arrived <- struct{}{}
			select {
			case <-free:
			case <-r.Context().Done():
				return
			}
		}
		_, _ = io.WriteString(w, "second")
	})
	first := s.remote.Listener.Addr().String()
	bad := map[string]string{"v1." + a: first, "v1." + b: first} // so that both use the second one
	s.config.judge = func(r *registry.Report) {
		if bad[r.Name] == r.Address {
			r.Health, r.Reason = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck
		}
	}
	s.apply()
	type result struct{ group, body string }
	results := make(chan result, 2)
	for _, g := range []string{a, b} {
		go func() {
			res := s.open(things(g) + "?hang=1")
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Error(err)
			}
			results <- result{g, string(body)}
		}()
	}
	<-arrived
	<-arrived
	if rotate {
		s.rotate()
		must.Soon(t, 30*time.Second, "the new certificate", func() bool {
			s.open(things(a)).Body.Close()
			return second.last(t).peer == "front-proxy-client-2"
		})
	}
	bad["v1."+a], bad["v1."+b] = second.Listener.Addr().String(), ""
	s.apply()
	if got := <-results; got != (result{a, "ok"}) {
		t.Errorf("first answer: %v; want the request that waited for the ejected endpoint, from the other one", got)
	}
	close(free)
	if got := <-results; got != (result{b, "second"}) {
		t.Errorf("second answer: %v; want the neighbour's request, where it was", got)
	}
}

// After a rotation of the client certificate, all who share connections use a new one, and watches
// continue.
func TestSharedRotation(t *testing.T) {
	t.Parallel()
	s := newStreet(t, a, b)
	shared := s.shared(a, b)
	watch := s.open(things(a) + "?watch=1")
	s.rotate()
	must.Soon(t, 30*time.Second, "a connection of the new certificate", func() bool { return s.conn(a) != shared })
	next := s.at(a)
	for _, g := range []string{a, b} {
		check.Same(t, next, s.conn(g), "%s: its neighbour's connection", g)
		check.Same(t, "front-proxy-client-2", s.remote.last(t).peer, "%s: certificate", g)
	}
	s.goesOn("that had begun before", watch)
}
