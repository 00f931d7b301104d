//go:build e2e

package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testPolicy sets each annotation of an APIService in use, and removes it again: both take effect
// within moments, without a restart. tests/rotation tests the two about CA bundles.
func testPolicy(t *testing.T, d *door) {
	for name, f := range map[string]func(t *testing.T, p *policed){
		"request-timeout":           requestTimeout,
		"max-inflight":              maxInFlight,
		"max-longrunning":           maxLongRunning,
		"long-running-subresources": longRunningSubresources,
		"tls-server-name":           serverName,
		"probe-interval":            probeInterval,
		"http1":                     http1Only,
		"maintenance":               maintenance,
		"bad ones":                  badAnnotations,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, servers := d.backend(t, 1, extension.Config{Names: []string{"alias.example.com"}})
			f(t, &policed{d: d, backend: b, client: d.w.client(), server: servers[0]})
		})
	}
	t.Run("ping-timeout", func(t *testing.T) {
		t.Parallel()
		pingTimeout(t, d)
	})
}

// policed is an APIService whose annotations change.
type policed struct {
	*backend
	d      *door
	client *http.Client
	server *extension.Server
}

// annotate sets an annotation, or removes it if value is empty.
func (b *backend) annotate(t *testing.T, name, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"fairlead.dev/%s":%q}}}`, name, value)
	if value == "" {
		patch = fmt.Sprintf(`{"metadata":{"annotations":{"fairlead.dev/%s":null}}}`, name)
	}
	must.Get(b.w.groups.ApiregistrationV1().APIServices().Patch(t.Context(), b.apiService(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
}

func (p *policed) set(t *testing.T, faults ...extension.Fault) {
	t.Helper()
	must.Do(t, p.server.Set(faults...))
}

// get requests a path below the objects' path.
func (p *policed) get(t *testing.T, path string) (int, string) {
	t.Helper()
	return alone.Get(t, p.client, p.d.Endpoint.URL+p.widgets()+path)
}

// becomes waits until a path has a status.
func (p *policed) becomes(t *testing.T, path string, want int) {
	t.Helper()
	eventually(t, longest, fmt.Sprintf("%s is answered %d", path, want), func() bool { code, _ := p.get(t, path); return code == want })
}

// flips sets an annotation and removes it again, and waits for the status of a path before, with
// and after it.
func (p *policed) flips(t *testing.T, name, value, path string, without, with int) {
	t.Helper()
	p.becomes(t, path, without)
	p.annotate(t, name, value)
	p.becomes(t, path, with)
	p.annotate(t, name, "")
	p.becomes(t, path, without)
}

func requestTimeout(t *testing.T, p *policed) {
	p.set(t, extension.Fault{Kind: extension.Slow, Delay: 2 * time.Second, Path: p.widgets()})
	p.flips(t, "request-timeout", "1s", "/widget-001", 200, 504)
}

func longRunningSubresources(t *testing.T, p *policed) {
	p.annotate(t, "request-timeout", "1s")
	p.set(t, extension.Fault{Kind: extension.Slow, Delay: 2 * time.Second, Path: p.widgets() + "/widget-001/console"})
	p.flips(t, "long-running-subresources", "vnc,console", "/widget-001/console", 504, 200)
}

func maxInFlight(t *testing.T, p *policed) {
	p.set(t, extension.Fault{Kind: extension.Hang, Path: p.widgets() + "/hang"})
	p.hold(t, "/hang")
	eventually(t, longest, "one under way", func() bool { return p.inFlight(p.d) >= 1 })
	p.flips(t, "max-inflight", "1", "/widget-001", 200, 429)
}

func maxLongRunning(t *testing.T, p *policed) {
	const watch = "?watch=1&resourceVersion=1"
	p.hold(t, watch)
	eventually(t, longest, "one watch open", func() bool { return p.server.Stats().Watchers >= 1 })
	p.flips(t, "max-longrunning", "1", watch+"&timeoutSeconds=1", 200, 429)
	p.annotate(t, "max-longrunning", "1")
	p.becomes(t, watch+"&timeoutSeconds=1", 429)
	if code, text := p.get(t, "/widget-001"); code != 200 {
		t.Errorf("a short request: %d %s", code, text)
	}
}

// hold keeps a request running until the test ends.
func (p *policed) hold(t *testing.T, path string) {
	t.Helper()
	beside(t, func(ctx context.Context) {
		_, _ = ask.Do(ctx, p.d.w.client(), http.MethodGet, p.d.Endpoint.URL+p.widgets()+path, nil, "")
	})
}

func serverName(t *testing.T, p *policed) {
	p.annotate(t, "tls-server-name", "alias.example.com")
	eventually(t, longest, "asked by its other name", func() bool {
		// By new connections, such as a probe's. Existing ones that both names verify stay.
		return slices.ContainsFunc(p.server.Requests(0), func(r extension.Request) bool { return r.ServerName == "alias.example.com" })
	})
	p.becomes(t, "/widget-001", 200)
	p.annotate(t, "tls-server-name", "stranger.example.com")
	eventually(t, longest, "unavailable by a name that its certificate lacks", func() bool { return p.unavailable(p.d) })
	p.becomes(t, "/widget-001", 503)
	p.annotate(t, "tls-server-name", "")
	p.becomes(t, "/widget-001", 200)
}

func probeInterval(t *testing.T, p *policed) {
	probes := func() (n int) {
		seq := last(p.server)
		suite.Pause(t, 4*time.Second)
		return len(p.server.Requests(seq))
	}
	p.annotate(t, "probe-interval", "1m")
	suite.Pause(t, 12*time.Second) // the next probe at the old interval is due within that
	if n := probes(); n > 1 {
		t.Errorf("%d probes in 4 s at one a minute", n)
	}
	p.annotate(t, "probe-interval", "1s")
	suite.Pause(t, time.Second)
	if n := probes(); n < 3 {
		t.Errorf("%d probes in 4 s at one a second", n)
	}
}

func http1Only(t *testing.T, p *policed) {
	speaks := func(proto string) func() bool {
		return func() bool {
			code, text := p.get(t, "/widget-001")
			if code != 200 {
				t.Errorf("meanwhile: %d %s", code, text)
			}
			all := p.server.Requests(0)
			return all[len(all)-1].Proto == proto
		}
	}
	eventually(t, longest, "HTTP/2", speaks("HTTP/2.0"))
	p.annotate(t, "http1", "true")
	eventually(t, longest, "HTTP/1.1", speaks("HTTP/1.1"))
	p.annotate(t, "http1", "")
	eventually(t, longest, "HTTP/2 again", speaks("HTTP/2.0"))
}

func maintenance(t *testing.T, p *policed) {
	p.annotate(t, "maintenance", "moving house")
	eventually(t, longest, "closed", func() bool {
		code, text := p.get(t, "/widget-001")
		return code == 503 && strings.Contains(text, "moving house")
	})
	p.annotate(t, "maintenance", "")
	p.becomes(t, "/widget-001", 200)
}

// badAnnotations are reported, and change nothing.
func badAnnotations(t *testing.T, p *policed) {
	p.annotate(t, "request-timeout", "soon")
	p.annotate(t, "max-inflght", "1")
	eventually(t, longest, "reported", func() bool {
		text := must.Get(p.d.get(t.Context(), "/status"))(t)
		return strings.Contains(text, "fairlead.dev/request-timeout: \\\"soon\\\" is not a duration") && strings.Contains(text, "fairlead.dev/max-inflght: unknown name")
	})
	if code, text := p.get(t, "/widget-001"); code != 200 {
		t.Errorf("%d %s", code, text)
	}
}

// pingTimeout disconnects a backend's only host: its watches end within the policy's time, instead
// of 5 s.
func pingTimeout(t *testing.T, d *door) {
	const ping = time.Second
	b := d.w.newBackend()
	process := b.start(t, d.w.hosts.add(t))
	b.register(t, process.addr())
	b.await(t, d)
	client := d.w.client()
	knock(t, client, d.Endpoint.URL+b.widgets()) // makes a connection with the default
	b.annotate(t, "ping-timeout", ping.String())
	suite.Pause(t, time.Second)
	res := must.Get(ask.Open(t.Context(), client, d.Endpoint.URL+b.widgets()+"?watch=1&resourceVersion=1", nil))(t)
	defer res.Body.Close()
	var ended atomic.Bool
	over := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, res.Body)
		ended.Store(true)
		over <- err
	}()
	suite.Pause(t, time.Second)
	lost := d.w.start()
	process.host.unplug(t)
	took := lost.until(t, eventually(t, longest, "cut", ended.Load))
	t.Logf("the watch was cut off after %s", took.Round(time.Millisecond))
	if took > 2*ping {
		t.Errorf("the watch was cut off after %s, want about %s", took, ping)
	}
	if err := <-over; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v, want an error that its client notices", err)
	}
}
