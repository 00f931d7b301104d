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

// broken stands for an answer that the client sees break off.
const broken = 0

// malice is what a backend does, and what may become of a request: what a client of HTTP/2 or
// HTTP/1.1 sees when the backend speaks either.
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
		of(extension.ShortBody, broken, 502),     // a head waits for its first bytes: a client over HTTP/1.1 may have had nothing yet
		of(extension.LongBody, broken, 200, 502), // over HTTP/1.1 what is too much is the next answer, to nobody
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
		sized(extension.GzipBomb, endless/16, 200), // passed on as it is: it is the client's to unpack
		of(extension.Hang, 504),
		of(extension.HangBody, broken),
	}
}

// testBackends has a backend of each protocol attack clients of each, and looks at what they see,
// at memory, and at the next request.
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
						t.Errorf("the backend was asked %d times", n)
					}
					must.Do(t, backend.s.Set())
					d.serves(t, backend.path+"/widget-001")
					if wrong := i.once(t.Context()); wrong != nil {
						t.Errorf("meanwhile others were answered %s", wrong)
					}
				})
			}
		}
	}
	after, peak := d.memory(t)
	t.Logf("memory +%d MiB at most, %+d MiB after", (peak-before)/mib, (after-before)/mib)
	if peak-before > 96*mib {
		t.Errorf("%d MiB were taken", (peak-before)/mib)
	}
}

// taste asks and reads some of what comes: the status when it ended well or never ends, broken when
// it broke off. What was forged must not be in it.
func (d *door) taste(t *testing.T, c *http.Client, path string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	res, err := c.Do(must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "https://"+d.Front+path, nil))(t))
	if err != nil {
		if ctx.Err() != nil {
			t.Errorf("no answer: %v", err)
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
			t.Errorf("no end: %v", err)
		}
		return broken
	}
	return res.StatusCode
}

// testBombs has a backend's discovery and OpenAPI unpack to a thousand times their size, or never
// end, from the beginning.
func testBombs(t *testing.T, w *world) {
	for _, kind := range []extension.Kind{extension.GzipBomb, extension.HugeBody, extension.EndlessHeaders, extension.InformationalFlood, extension.Redirect, extension.Garbage} {
		t.Run(string(kind), func(t *testing.T) {
			d := w.open(t)
			before, _ := d.memory(t)
			d.forgetPeak(t)
			must.Do(t, d.target.Set(extension.Fault{Kind: kind, Path: "/openapi", Size: 1 << 28}, extension.Fault{Kind: kind, Path: "/apis", Size: 1 << 28}))
			seen := d.target.Stats().Requests
			// Another generation of the table has everything asked anew.
			suite.Put(t, filepath.Join(d.registry, "target.yaml"), strings.Replace(w.manifest("target", "target.example.com", d.target.Addr(), ""), "versionPriority: 100", "versionPriority: 99", 1))
			suite.Eventually(t, 30*time.Second, "asked", func() (bool, string) { return d.target.Stats().Requests > seen, d.Log.String() })
			if status, _ := d.ask(t, d.root, "https://"+d.Front+"/openapi/v2"); status != http.StatusOK {
				t.Errorf("/openapi/v2 is answered %d", status)
			}
			suite.Pause(t, 3*time.Second) // for what goes on behind
			_, peak := d.memory(t)
			t.Logf("%d requests, memory +%d MiB at most", d.target.Stats().Requests-seen, (peak-before)/mib)
			if peak-before > 96*mib { // 16 MiB are read of a v2 document, 8 of discovery, and as much again is left behind until it is collected
				t.Errorf("%d MiB were taken", (peak-before)/mib)
			}
			if status, body := d.ask(t, d.root, "https://"+d.Front+"/apis"); status != http.StatusOK || !strings.Contains(body, "others.example.com") {
				t.Errorf("discovery is answered %d without others: %.200s", status, body)
			}
			if wrong := d.innocents().once(t.Context()); wrong != nil {
				t.Errorf("others are answered %s", wrong)
			}
		})
	}
}
