//go:build e2e

package hostile

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// The APIs of a door: innocent users request others, attacks target.
const (
	others = "/apis/others.example.com/v1/namespaces/default/widgets"
	target = "/apis/target.example.com/v1/namespaces/default/widgets"
)

// othersTake is how long the innocents' backend takes, like a real one. Without it the machine's
// scheduler would dominate their latency.
const othersTake = 10 * time.Millisecond

// door is one Fairlead over a directory, with one extension server for innocent users and one that
// is attacked through it, or attacks.
type door struct {
	*alone.Door
	w              *world
	registry       string
	others, target *extension.Server
	root           *http.Client // in system:masters
}

// open starts a door where every authenticated user may do everything, and waits until it serves.
func (w *world) open(t *testing.T, args ...string) *door {
	t.Helper()
	d := &door{w: w, registry: t.TempDir()}
	d.others, d.target = w.extension(t, "others", "others.example.com/v1", -1), w.extension(t, "target", "target.example.com/v1", 0)
	suite.Put(t, filepath.Join(d.registry, "others.yaml"), w.manifest("others", "others.example.com", d.others.Addr(), ""))
	suite.Put(t, filepath.Join(d.registry, "target.yaml"), w.manifest("target", "target.example.com", d.target.Addr(), ""))
	must.Do(t, d.others.Set(extension.Fault{Kind: extension.Slow, Delay: othersTake, Path: others}))
	d.start(t, w.bin, args...)
	for _, path := range []string{others, target} {
		d.serves(t, path)
	}
	return d
}

// serves waits until a path is served.
func (d *door) serves(t *testing.T, path string) {
	t.Helper()
	suite.Eventually(t, time.Minute, "serving "+path, func() (bool, string) {
		status, body := d.ask(t, d.root, "https://"+d.Front+path+"?limit=1")
		return status == http.StatusOK, fmt.Sprintf("%d %s\n%s", status, body, d.Log)
	})
}

// start runs a program as fairlead serve: fairlead itself, or a script that executes it.
func (d *door) start(t *testing.T, program string, args ...string) {
	t.Helper()
	d.Door = d.w.keys.Serve(t, program, d.registry, append([]string{"--authorization-mode=AlwaysAllow"}, args...)...)
	d.root = client(d.w.as("root", "system:masters"), "h2")
	t.Cleanup(d.root.CloseIdleConnections)
}

// ask returns the answer, or status 0 without one.
func (d *door) ask(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	return alone.Get(t, c, url)
}

// metric returns the sum of all series that begin with a text; at least one must exist.
func (d *door) metric(t *testing.T, begin string) float64 {
	t.Helper()
	series := must.Get(ask.Metrics(t.Context(), d.root, "https://"+d.Admin))(t)
	sum, found := 0.0, false
	for name, v := range series {
		if rest, ok := strings.CutPrefix(name, begin); ok && !strings.HasPrefix(rest, "_") {
			sum, found = sum+v, true
		}
	}
	if !found {
		t.Fatalf("no metric begins with %s: %v", begin, series)
	}
	return sum
}
