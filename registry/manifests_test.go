package registry

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/tests/apiserver"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	samples "github.com/fairlead-proxy/fairlead/tests/manifests"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// manifestsOf returns the manifests of one remote API group.
func manifestsOf(group, address string) string { return samples.Remote(group, address, "") }

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
}

// rename replaces a file atomically, as editors and deployment tools do.
func rename(t *testing.T, path, text string) {
	t.Helper()
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	write(t, temporary, text)
	must.Do(t, os.Rename(temporary, path))
}

func startDirectory(t *testing.T, path string, c Config) *Registry {
	t.Helper()
	c.Directory = path
	r := running(t, c)
	until(t, r, "everything", (*Table).Complete)
	return r
}

func address(t *Table, name string) string {
	if e := t.named(name); e != nil && len(e.Endpoints) == 1 {
		return e.Endpoints[0].Address
	}
	return ""
}

func TestDirectoryFollows(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	write(t, a, manifestsOf("a.io", "127.0.0.1"))
	write(t, filepath.Join(dir, "README.md"), "not a manifest")
	write(t, filepath.Join(dir, ".hidden.yaml"), "neither: is this")
	r := startDirectory(t, dir, Config{})
	table := r.Table()
	if len(table.Entries()) != 1 || address(table, "v1.a.io") != "127.0.0.1:8443" || len(table.Problems()) != 0 {
		t.Fatalf("table %s, problems %v", show(table), table.Problems())
	}
	if o := table.Entries()[0].Object; o.UID == "" || o.CreationTimestamp.IsZero() {
		t.Errorf("object without identity: %+v", o.ObjectMeta)
	}

	begun := time.Now()
	rename(t, a, manifestsOf("a.io", "127.0.0.2"))
	until(t, r, "the new address", func(t *Table) bool { return address(t, "v1.a.io") == "127.0.0.2:8443" })
	if took := time.Since(begun); took > time.Second {
		t.Errorf("routed after %s", took) // the goal is 0.1 s; the bound leaves room for a busy machine
	}

	sub := filepath.Join(dir, "more")
	must.Do(t, os.Mkdir(sub, 0o700))
	write(t, filepath.Join(sub, "b.yml"), manifestsOf("b.io", "127.0.0.1"))
	until(t, r, "a file in a new directory", func(t *Table) bool { return address(t, "v1.b.io") != "" })
	rename(t, filepath.Join(sub, "b.yml"), manifestsOf("b.io", "127.0.0.9"))
	until(t, r, "a change in the new directory", func(t *Table) bool { return address(t, "v1.b.io") == "127.0.0.9:8443" })
	must.Do(t, os.RemoveAll(sub))
	until(t, r, "one file", func(t *Table) bool { return len(t.Entries()) == 1 })
}

// A file's name that is not UTF-8 does not cost the scrape.
func TestDirectoryKeepsTheLastGood(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "gr\xf6\xdfe.yaml"), filepath.Join(dir, "h.yaml")
	write(t, a, manifestsOf("a.io", "127.0.0.1"))
	write(t, b, manifestsOf("b.io", "127.0.0.1"))
	var logged logbook.Book
	reg := prometheus.NewPedanticRegistry()
	r := startDirectory(t, dir, Config{Logger: slog.New(slog.NewTextHandler(&logged, nil)), Metrics: reg})
	before := r.Table().named("v1.a.io")

	rename(t, a, strings.Replace(manifestsOf("a.io", "127.0.0.2"), "kind: Service", "kind: Srvice", 1))
	rename(t, b, manifestsOf("b.io", "127.0.0.2"))
	table := until(t, r, "a problem and the good change", func(t *Table) bool {
		return len(t.Problems()) == 1 && address(t, "v1.b.io") == "127.0.0.2:8443"
	})
	if table.named("v1.a.io") != before {
		t.Error("the entry of the faulty file changed")
	}
	p := table.Problems()[0]
	if p.File != a || p.Line != 7 || p.Field != "kind" {
		t.Errorf("problem %+v", p)
	}
	must.Do(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP fairlead_registry_file_problems Faults of each invalid file of the directory, whose last valid objects are used, and of each invalid APIService in etcd.
# TYPE fairlead_registry_file_problems gauge
fairlead_registry_file_problems{file="`+dir+`/gr�e.yaml"} 1
`), "fairlead_registry_file_problems"))
	rename(t, a, manifestsOf("a.io", "127.0.0.3"))
	until(t, r, "no problem", func(t *Table) bool { return len(t.Problems()) == 0 && address(t, "v1.a.io") == "127.0.0.3:8443" })
	must.Soon(t, 10*time.Second, "the log says once that it has ended", func() bool {
		return strings.Count(logged.String(), "has no problem any more") == 1
	})
	if s := logged.String(); !strings.Contains(s, "line=7") || !strings.Contains(s, "field=kind") {
		t.Errorf("log: %s", s)
	}
}

// The log says which problem an object in etcd has, and once that those of a file or object have
// ended. It says when an availability changes, but not for Local APIServices.
func TestLogOfProblems(t *testing.T) {
	var logged logbook.Book
	r := &Registry{log: slog.New(slog.NewTextHandler(&logged, nil))}
	all := []directory.Fault{{File: "a.yaml", Line: 1}, {File: "a.yaml", Line: 2}, {File: "b.yaml", Line: 1}, {File: inEtcd + "v1.c.io", Message: "no JSON"}}
	r.compareProblems(all[:3], all)
	r.compareProblems(all, all[2:3])
	entry := func(reason string) *Entry { return &Entry{Name: "v1.d.io", Verdict: Verdict{Reason: reason}} }
	r.compare(&Table{}, &Table{}, []latest.Change[*Entry]{
		{New: entry(ReasonLocal)}, {New: entry(ReasonPassed)}, {Old: entry(ReasonPassed), New: entry(ReasonPassed)}, {Old: entry(ReasonPassed)},
	})
	var got []string
	for line := range strings.Lines(logged.String()) {
		_, text, _ := strings.Cut(line, " msg=")
		got = append(got, strings.TrimSpace(text))
	}
	check.Same(t, []string{
		`"problem with APIService in etcd" apiservice=v1.c.io problem="no JSON"`,
		`"manifest has no problem any more" file=a.yaml`, `"APIService in etcd has no problem any more" apiservice=v1.c.io`,
		`"availability changed" apiservice=v1.d.io status="" reason=Passed message=""`,
	}, got, "log")
}

func TestDirectoryDuplicates(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.yaml"), manifestsOf("a.io", "127.0.0.2"))
	write(t, filepath.Join(dir, "a.yaml"), manifestsOf("a.io", "127.0.0.1"))
	table := startDirectory(t, dir, Config{}).Table()
	check.Same(t, "127.0.0.1:8443", address(table, "v1.a.io"), "table %s", show(table))
	p := table.Problems()
	if len(p) != 3 || p[0].File != filepath.Join(dir, "b.yaml") || !strings.Contains(p[0].Message, filepath.Join(dir, "a.yaml")+":1") {
		t.Errorf("problems %v", p)
	}
}

// TestDirectoryConfigMapMount replaces files as the kubelet does: they are links through ..data,
// which is renamed. A folder of a projected volume is a link, too.
func TestDirectoryConfigMapMount(t *testing.T) {
	dir := t.TempDir()
	version := func(name, at string) {
		must.Do(t, os.MkdirAll(filepath.Join(dir, name, "more"), 0o700))
		write(t, filepath.Join(dir, name, "a.yaml"), manifestsOf("a.io", at))
		write(t, filepath.Join(dir, name, "more", "b.yaml"), manifestsOf("b.io", at))
	}
	link := func(to, name string) {
		must.Do(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	routed := func(at string) func(*Table) bool {
		return func(t *Table) bool { return address(t, "v1.a.io") == at && address(t, "v1.b.io") == at }
	}
	version("..1", "127.0.0.1")
	link("..1", "..data")
	link("..data/a.yaml", "a.yaml")
	link("..data/more", "more")
	r := startDirectory(t, dir, Config{})
	if !routed("127.0.0.1:8443")(r.Table()) {
		t.Fatalf("table %s", show(r.Table()))
	}
	version("..2", "127.0.0.2")
	link("..2", "..data_tmp")
	must.Do(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	until(t, r, "the new version", routed("127.0.0.2:8443"))
}

func TestDirectoryIsSwapped(t *testing.T) {
	parent := t.TempDir()
	for i, d := range []string{"one", "two"} {
		must.Do(t, os.Mkdir(filepath.Join(parent, d), 0o700))
		write(t, filepath.Join(parent, d, "a.yaml"), manifestsOf("a.io", fmt.Sprintf("127.0.0.%d", i+1)))
	}
	current := filepath.Join(parent, "current")
	must.Do(t, os.Symlink("one", current))
	r := startDirectory(t, current, Config{})
	must.Do(t, os.Symlink("two", current+".new"))
	must.Do(t, os.Rename(current+".new", current))
	until(t, r, "the other directory", func(t *Table) bool { return address(t, "v1.a.io") == "127.0.0.2:8443" })
	// If the directory disappears, the objects stay.
	must.Do(t, os.Remove(current))
	table := until(t, r, "a problem", func(t *Table) bool { return len(t.Problems()) == 1 })
	check.Same(t, 1, len(table.Entries()), "table %s", show(table))
}

func TestDirectoryOddFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "empty.yaml"), "")
	write(t, filepath.Join(dir, "large.yaml"), strings.Repeat("# large\n", 4<<20/8+1))
	must.Do(t, os.Mkdir(filepath.Join(dir, "dir.yaml"), 0o700))
	must.Do(t, os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")))
	must.Do(t, os.Symlink(dir, filepath.Join(dir, "loop.yaml")))
	must.Do(t, os.Symlink("..", filepath.Join(dir, "dir.yaml", "loop")))
	must.Do(t, os.Symlink("nowhere", filepath.Join(dir, "no manifest")))
	must.Do(t, os.Symlink("large.yaml", filepath.Join(dir, "no manifest either")))
	table := startDirectory(t, dir, Config{}).Table()
	var got []string
	for _, p := range table.Problems() {
		got = append(got, strings.TrimPrefix(p.String(), dir+"/"))
	}
	want := []string{
		"dangling.yaml: reading file: no such file or directory", "dir.yaml/loop: reading directory: a link to a directory that contains it", "large.yaml: reading file: larger than 4194304 bytes",
		"loop.yaml: reading file: not a regular file",
	}
	check.Same(t, strings.Join(want, "\n"), strings.Join(got, "\n"), "problems")
	if _, err := New(Config{Directory: filepath.Join(dir, "nowhere")}); err == nil {
		t.Error("no error for a missing directory")
	}
	if _, err := New(Config{Directory: filepath.Join(dir, "empty.yaml")}); err == nil {
		t.Error("no error for a file as a directory")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no error without a source")
	}
}

// The directory's ConfigMap takes precedence over the cluster's. One that is removed from it is
// gone, even if the cluster's cannot be read: its bundle must not be trusted any longer.
func TestWatchConfigMapOfDirectory(t *testing.T) {
	for _, tc := range []struct {
		name               string
		cluster, forbidden bool
		below              string
	}{{"alone", false, false, "none"}, {"beside a cluster", true, false, "theirs"}, {"beside one that cannot be read", true, true, "none"}} {
		t.Run(tc.name, func(t *testing.T) {
			dir, server, c := t.TempDir(), apiserver.New(), Config{}
			server.Put(configMap("trust", "theirs"))
			if tc.cluster {
				c = Config{Client: server.Start(t), Cluster: true}
			}
			if tc.forbidden {
				forbid(c.Client, true, apiserver.ConfigMaps)
			}
			file := filepath.Join(dir, "trust.yaml")
			put := func(ca string) {
				rename(t, file, "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: kube-system, name: trust}, data: {ca: "+ca+"}}")
			}
			put("one")
			expect := watchTrust(t, startDirectory(t, dir, c))
			expect("one")
			put("two")
			expect("two")
			must.Do(t, os.Remove(file))
			expect(tc.below)
			if !tc.forbidden {
				put("three")
				expect("three")
			}
		})
	}
}
