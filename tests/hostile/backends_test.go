//go:build e2e

package hostile

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// broken stands for an answer that breaks off.
const broken = 0

// malice is a backend's fault, and what clients of HTTP/2 or HTTP/1.1 may see of it over either
// backend protocol.
type malice struct {
	fault extension.Fault
	want  []int
}

func malices() []malice {
	const endless = 1 << 30
	of := func(kind extension.Kind, want ...int) malice { return malice{extension.Fault{Kind: kind}, want} }
	sized := func(kind extension.Kind, size int64, want ...int) malice {
		return malice{extension.Fault{Kind: kind, Size: size}, want}
	}
	return []malice{
		sized(extension.EndlessHeaders, endless, 502, 503),
		sized(extension.EndlessTrailers, endless, broken, 502),
		sized(extension.InformationalFlood, 1_000_000, 502, 503, 504, broken),
		of(extension.ShortBody, broken, 502),     // a head waits for its first bytes: an HTTP/1.1 client may have received nothing yet
		of(extension.LongBody, broken, 200, 502), // over HTTP/1.1 the excess is an answer without a request
		of(extension.ResetBody, broken),
		of(extension.Reset, 503, broken),
		of(extension.ResetConn, 503, broken),
		of(extension.Redirect, 502),
		of(extension.Unasked101, 502, 503),
		of(extension.BodyAfterReset, broken, 200, 502, 503),
		of(extension.GoAway, 200),
		of(extension.GoAwayUnprocessed, 503),
		of(extension.Garbage, 200),
		sized(extension.HugeBody, endless, 200),
		sized(extension.GzipBomb, endless/16, 200), // passed on unchanged: the client unpacks it
		of(extension.Hang, 504),
		of(extension.HangBody, broken),
	}
}

// testBackends lets a backend of each protocol attack clients of each. It checks what they receive,
// memory, and the next request.
func testBackends(t *testing.T, d *door) {
	old := d.w.extension(t, "ancient", "ancient.example.com/v1", 0)
	ancient := "/apis/ancient.example.com/v1/namespaces/default/widgets"
	suite.Put(t, filepath.Join(d.registry, "ancient.yaml"), d.w.manifest("ancient", "ancient.example.com", old.Addr(), `fairlead.dev/http1: "true"`))
	d.serves(t, ancient)
	before, _ := d.memory(t)
	d.forgetPeak(t)
	i := d.innocents()
	for _, m := range malices() {
		for proto, backend := range map[string]struct {
			s    *extension.Server
			path string
		}{"HTTP/2": {d.target, target}, "HTTP/1.1": {old, ancient}} {
			for _, from := range []string{"h2", "http/1.1"} {
				t.Run(string(m.fault.Kind)+" over "+proto+" to "+from, func(t *testing.T) {
					m.fault.Path = backend.path + "/widget-001"
					must.Do(t, backend.s.Set(m.fault))
					backend.s.Forget()
					c := client(d.w.as("victim"), from)
					defer c.CloseIdleConnections()
					got := d.taste(t, c, m.fault.Path+"?timeout=2s")
					if !slices.Contains(m.want, got) {
						t.Errorf("answered %d, want one of %v", got, m.want)
					}
					if n := len(backend.s.Requests(0)); n > 8 { // three tries, and the prober's
						t.Errorf("the backend received %d requests", n)
					}
					must.Do(t, backend.s.Set())
					d.serves(t, backend.path+"/widget-001")
					if wrong := i.once(t.Context()); wrong != nil {
						t.Errorf("others received %s meanwhile", wrong)
					}
				})
			}
		}
	}
	after, peak := d.memory(t)
	t.Logf("memory +%d MiB at most, %+d MiB after", (peak-before)/mib, (after-before)/mib)
	if peak-before > 96*mib {
		t.Errorf("%d MiB were used", (peak-before)/mib)
	}
}

// taste sends a request and reads some of the answer. It returns the status if the answer ended
// well or is endless, and broken if it broke off. It must not contain forged data.
func (d *door) taste(t *testing.T, c *http.Client, path string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	res, err := c.Do(must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "https://"+d.Front+path, nil))(t))
	if err != nil {
		if ctx.Err() != nil {
			t.Errorf("timeout without an answer: %v", err)
		}
		return broken
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 32*mib))
	if strings.Contains(string(body[:min(len(body), 1000)]), "forged") {
		t.Errorf("answered %q", body)
	}
	if err != nil {
		if ctx.Err() != nil {
			t.Errorf("timeout within the answer: %v", err)
		}
		return broken
	}
	return res.StatusCode
}

// testBombs starts with discovery and OpenAPI documents that unpack to a thousand times their size,
// or never end.
func testBombs(t *testing.T, w *world) {
	for _, kind := range []extension.Kind{extension.GzipBomb, extension.HugeBody, extension.EndlessHeaders, extension.InformationalFlood, extension.Redirect, extension.Garbage} {
		t.Run(string(kind), func(t *testing.T) {
			d := w.open(t)
			before, _ := d.memory(t)
			d.forgetPeak(t)
			must.Do(t, d.target.Set(extension.Fault{Kind: kind, Path: "/openapi", Size: 1 << 28}, extension.Fault{Kind: kind, Path: "/apis", Size: 1 << 28}))
			seen := d.target.Stats().Requests
			// A new table makes Fairlead request everything again.
			suite.Put(t, filepath.Join(d.registry, "target.yaml"), strings.Replace(w.manifest("target", "target.example.com", d.target.Addr(), ""), "versionPriority: 100", "versionPriority: 99", 1))
			suite.Eventually(t, 30*time.Second, "asked", func() (bool, string) { return d.target.Stats().Requests > seen, d.Log.String() })
			if status, _ := d.ask(t, d.root, "https://"+d.Front+"/openapi/v2"); status != http.StatusOK {
				t.Errorf("/openapi/v2 returned %d", status)
			}
			suite.Pause(t, 3*time.Second) // for background work
			_, peak := d.memory(t)
			t.Logf("%d requests, memory +%d MiB at most", d.target.Stats().Requests-seen, (peak-before)/mib)
			if peak-before > 96*mib { // at most 16 MiB of a v2 document and 8 of discovery are read, and as much garbage remains until it is collected
				t.Errorf("%d MiB were used", (peak-before)/mib)
			}
			if status, body := d.ask(t, d.root, "https://"+d.Front+"/apis"); status != http.StatusOK || !strings.Contains(body, "others.example.com") {
				t.Errorf("discovery returned %d without others: %.200s", status, body)
			}
			if wrong := d.innocents().once(t.Context()); wrong != nil {
				t.Errorf("others received %s", wrong)
			}
		})
	}
}
