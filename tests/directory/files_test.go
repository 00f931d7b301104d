//go:build e2e

package directory

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/manifests"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testInvalid puts every bad manifest of the table beside a good one: each is logged with file,
// line and field and counted in the metric, and the good one stays in use.
func testInvalid(t *testing.T, w *world) {
	registry := t.TempDir()
	server := w.extension(t, "widgets.example.com/v1")
	suite.Put(t, filepath.Join(registry, "good.yaml"), apiOf(server, "widgets.example.com", "v1", "one"))
	d := w.open(t, registry)
	d.becomes(t, d.root, widgets, http.StatusOK)
	cases := manifests.Invalid()
	if len(cases) < 40 {
		t.Fatalf("%d cases, want 40", len(cases))
	}
	for i, tc := range cases {
		suite.Put(t, filepath.Join(registry, fmt.Sprintf("bad-%02d.yaml", i)), tc.Text)
	}
	located := regexp.MustCompile(`^bad\.yaml:(\d+): (.*)$`)
	var metrics string
	suite.Eventually(t, 30*time.Second, "all counted", func() (bool, string) {
		_, metrics = alone.Get(t, d.root, d.admin.URL+"/metrics")
		return strings.Count(metrics, "\nfairlead_registry_file_problems{") >= len(cases), metrics
	})
	for i, tc := range cases {
		t.Run(tc.Name, func(t *testing.T) {
			file := filepath.Join(registry, fmt.Sprintf("bad-%02d.yaml", i))
			want := located.FindStringSubmatch(tc.Want)
			if want == nil {
				t.Fatalf("the table has %q", tc.Want)
			}
			line := d.find("problem with manifest, the last valid state is kept", "file", file, "line", want[1], "problem", want[2])
			if line == nil {
				t.Fatalf("%s:%s: %s is not in the log", file, want[1], want[2])
			}
			if field, _, _ := strings.Cut(want[2], ": "); line["field"] != "" && line["field"] != field {
				t.Errorf("field %v, want %s", line["field"], field)
			}
			if !strings.Contains(metrics, fmt.Sprintf("fairlead_registry_file_problems{file=%q}", file)) {
				t.Error("it is not in the metric")
			}
		})
	}
	t.Run("the others stay served", func(t *testing.T) { d.status(t, d.root, widgets, http.StatusOK) })
	t.Run("the last good one of a file that turns bad stays", func(t *testing.T) {
		suite.Put(t, filepath.Join(registry, "good.yaml"), "kind: [\n")
		suite.Eventually(t, 10*time.Second, "reported", func() (bool, string) {
			return d.find("problem with manifest, the last valid state is kept", "file", filepath.Join(registry, "good.yaml")) != nil, d.Log.String()
		})
		d.status(t, d.root, widgets, http.StatusOK)
	})
	t.Run("two files that claim the same", func(t *testing.T) {
		suite.Put(t, filepath.Join(registry, "good.yaml"), apiOf(server, "widgets.example.com", "v1", "one"))
		suite.Put(t, filepath.Join(registry, "thief.yaml"), apiOf(server, "widgets.example.com", "v1", "two"))
		d.logs(t, "file", filepath.Join(registry, "thief.yaml"), filepath.Join(registry, "good.yaml")+":1")
		d.status(t, d.root, widgets, http.StatusOK)
	})
}

// rounds is how often a failed measurement is repeated: the limits are the product's, and the
// machine may be busy.
const rounds = 3

// testSpeed measures how long a thousand manifests take, by the log's timestamps, and how soon a
// client notices a renamed file.
func testSpeed(t *testing.T, w *world) {
	registry := t.TempDir()
	server := w.extension(t, "widgets.example.com/v1")
	good := apiOf(server, "widgets.example.com", "v1", "one")
	suite.Put(t, filepath.Join(registry, "widgets.yaml"), good)
	for i := range 999 {
		// Without an EndpointSlice there are no probes: only reading is measured.
		text, _, _ := strings.Cut(api(fmt.Sprintf("g%03d.example.com", i), "v1", "one", "127.0.0.1:1", "eA=="), "---\n")
		suite.Put(t, filepath.Join(registry, fmt.Sprintf("g%03d.yaml", i)), strings.NewReplacer("name: one", "name: none", "  caBundle: eA==\n", "").Replace(text))
	}
	t.Run("1000 manifests", func(t *testing.T) {
		var took []time.Duration
		for range rounds {
			d := w.open(t, registry)
			complete := d.find("registry is complete", "apiservices", 1000)
			if complete == nil {
				t.Fatal("the registry is not complete")
			}
			took = append(took, complete.at(t).Sub(d.find("serving").at(t)))
			must.Do(t, d.Stop())
			if took[len(took)-1] <= time.Second {
				break
			}
		}
		t.Logf("took %s", took)
		if slices.Min(took) > time.Second {
			t.Errorf("1000 manifests took %s at best, want 1s", slices.Min(took))
		}
	})
	t.Run("a renamed file", func(t *testing.T) {
		d := w.open(t, registry)
		d.becomes(t, d.root, widgets, http.StatusOK)
		closed := strings.Replace(good, "  name: v1.widgets.example.com\n", "  name: v1.widgets.example.com\n  annotations: {fairlead.dev/maintenance: closed}\n", 1)
		var best []time.Duration
		for range rounds {
			var took []time.Duration
			for range 10 {
				took = append(took, d.renamed(t, "widgets.yaml", closed, http.StatusServiceUnavailable), d.renamed(t, "widgets.yaml", good, http.StatusOK))
			}
			slices.Sort(took)
			if best = took; best[len(best)/2] <= 100*time.Millisecond {
				break
			}
		}
		t.Logf("routed after %s (min), %s (median), %s (max)", best[0], best[len(best)/2], best[len(best)-1])
		if best[len(best)/2] > 100*time.Millisecond {
			t.Errorf("a changed file is routed after %s, want 100ms", best[len(best)/2])
		}
	})
}

// renamed renames a file into place and returns the time until it is in effect.
func (d *door) renamed(t *testing.T, name, text string, status int) time.Duration {
	t.Helper()
	begun := time.Now()
	suite.Put(t, filepath.Join(d.registry, name), text)
	for time.Since(begun) < 10*time.Second {
		if got, _ := d.ask(t, d.root, widgets+"?limit=1"); got == status {
			return time.Since(begun)
		}
	}
	t.Fatalf("no status %d within 10s of the rename", status)
	return 0
}
