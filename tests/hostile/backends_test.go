//go:build e2e

package hostile

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

const broken = 0 // stands for an answer that breaks off

// malice is a backend's fault, and what clients of HTTP/2 or HTTP/1.1 may see of it over either backend protocol.
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
		of(extension.Hang, 504),
		of(extension.HangBody, broken),
	}
}

// testBackends lets a backend of each protocol attack clients of each. It checks what they receive,
// memory, and the next request.
func testBackends(t *testing.T, d *door) {
	old := d.w.extension(t, "ancient", 0)
	d.register(t, "ancient", old, `fairlead.dev/http1: "true"`)
	d.serves(t, widgets("ancient"))
	before, _ := memory(t, d.Process.Pid)
	forgetPeak(t, d.Process.Pid)
	i := d.innocents()
	for _, m := range malices() {
		for proto, backend := range map[string]struct {
			s    *extension.Server
			path string
		}{"HTTP/2": {d.target, target}, "HTTP/1.1": {old, widgets("ancient")}} {
			for _, from := range []string{"h2", "http/1.1"} {
				t.Run(string(m.fault.Kind)+" over "+proto+" to "+from, func(t *testing.T) {
					m.fault.Path = backend.path + "/widget-001"
					must.Do(t, backend.s.Set(m.fault))
					backend.s.Forget()
					c := client(d.w.as("victim"), from)
					defer c.CloseIdleConnections()
					deadline := "?timeout=2s"
					if slices.Equal(m.want, []int{http.StatusOK}) { // slow cores may take longer for 32 MiB
						deadline = ""
					}
					got := d.taste(t, c, m.fault.Path+deadline)
					check.Same(t, true, slices.Contains(m.want, got), "answered %d, want one of %v", got, m.want)
					tries := slices.DeleteFunc(backend.s.Requests(), func(r extension.Request) bool { return !strings.HasPrefix(r.Target, m.fault.Path) })
					if n := len(tries); n > 8 { // the prober has requests, too, the more the longer it takes
						t.Errorf("the backend received %d requests", n)
					}
					must.Do(t, backend.s.Set())
					d.serves(t, backend.path+"/widget-001")
					check.Fault(t, "", ask.Serves(t.Context(), i.client, i.url), "others meanwhile")
				})
			}
		}
	}
	_, peak := memory(t, d.Process.Pid)
	t.Logf("memory +%d MiB at most", (peak-before)/mib)
	check.Same(t, true, peak-before <= 96*mib, "%d MiB were used", (peak-before)/mib)
}

// taste sends a request and reads some of the answer. It returns the status if the answer ended
// well or is endless, and broken if it broke off. It must not contain forged data.
func (d *door) taste(t *testing.T, c *http.Client, path string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second) // less than the minute of a request without a deadline
	defer cancel()
	defer func() { check.Fault(t, "", ctx.Err(), "time") }()
	res, err := c.Do(must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "https://"+d.Front+path, nil))(t))
	if err != nil {
		return broken
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 32*mib))
	check.Lacks(t, string(body[:min(len(body), 1000)]), "forged")
	if err != nil {
		return broken
	}
	return res.StatusCode
}
