package registry

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	samples "github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

// live has the steps of stories in which a registry runs over real sources: APIServices in etcd, a
// cluster behind a client, and a directory.
//
//	serves <gv>…                        what the cluster says that it serves, beside core v1
//	defines <name> <version>            its only CustomResourceDefinition
//	forbids lists|streams <kind>…       the cluster does not allow to read them; it may not know streams
//	forbids unready <kind>…             the same, until it was asked whether it is ready, which it is not
//	allows                              now it does
//	put etcd|client <file>…             objects
//	drop etcd|client <kind> <ns>/<name>
//	fault etcd|client broken|starting|none
//	unread etcd|client yes|no           whether something of it is not read soon
//	write <path> <file>                 a file of the directory, renamed into its place, as editors do
//	remote <path> <group> <address>     the same with the manifests of one remote API group
//	size <path> <bytes>
//	folder <path>, remove <path>, link <to> <path>, rename <path> <path>
//	start <source>…                     in place of the last: etcd, client, cluster, policy=<policy>, directory[=<path>], or away, a client of nobody
//	await <file>                        the table, without times; soon: within 5 s
//	first <file>                        the first table that is complete
//	kept <apiservice>                   its entry is the same since the await before the last
//	cached <apiservice>…                what is soon stored for a start without etcd
//	metrics <file>
//	trust <text>|none                   the next state of the ConfigMap kube-system/trust
//
// Report and same are those of other stories.
type live struct {
	*teller
	dir       string
	servers   map[string]*apiserver.Server // :: etcd or client
	serves    []string
	defines   []string // name and version
	forbidden []string // paths
	streams   bool
	unready   bool
	registry  *Registry
	metrics   meter
	trusted   map[string]chan string // :: ConfigMap → its CA, at each change
	stops     []func()               // what runs
}

func newLive(s *teller) *live {
	l := &live{teller: s, dir: s.TempDir(), servers: map[string]*apiserver.Server{"etcd": apiserver.New(), "client": apiserver.New()}}
	s.Cleanup(l.stop)
	return l
}

func (l *live) stop() {
	for _, stop := range l.stops {
		stop()
	}
}

// step reports whether there is such a step.
func (l *live) step(at string, words []string) bool {
	if l.registry != nil && slices.Contains([]string{"report", "same"}, words[0]) {
		words[0] += " live"
	}
	switch words[0] {
	case "serves":
		l.stop() // before what its requests read is changed
		l.serves = words[1:]
	case "defines":
		l.stop()
		l.defines = words[1:]
	case "forbids":
		l.stop()
		l.streams, l.unready, l.forbidden = words[1] == "streams", words[1] == "unready", nil
		l.allowed.Store(false)
		for _, k := range words[2:] {
			l.forbidden = append(l.forbidden, paths()[k])
		}
	case "allows":
		l.allowed.Store(true)
	case "put":
		for _, o := range l.decode(words[2:]) {
			l.servers[words[1]].Put(o)
		}
	case "drop":
		l.servers[words[1]].Drop(paths()[words[2]], words[3])
	case "fault":
		l.servers[words[1]].Fault(words[2] == "broken", words[2] == "starting")
	case "unread":
		must.Soon(l, 10*time.Second, at+": unread "+words[2], func() bool {
			local, stored := l.registry.Unread()
			return (map[string]error{"client": local, "etcd": stored}[words[1]] != nil) == (words[2] == "yes")
		})
	case "start":
		l.start(words[1:])
	case "await":
		l.await(at, words[1], 10*time.Second)
	case "soon": // the goal is 0.1 s, which a busy machine makes seconds; what is not told is found after ten, or a minute
		l.await(at, words[1], 5*time.Second)
	case "first": // consumers rely on it: nothing may be missing
		for l.table = l.registry.Table(); !l.table.Complete(); l.table = l.registry.Table() {
			<-l.table.Superseded()
		}
		l.story.Expect(l, at, words[1], l.shown())
	case "kept":
		check.Same(l, true, l.table.named(words[1]) == l.last.named(words[1]), "%s: another entry of %s", at, words[1])
	case "same live":
		now := l.registry.Table()
		check.Same(l, true, now == l.table, "%s: no new table:\n%s", at, show(now))
	case "report live":
		var b batch
		l.report(words[1:], &b)
		for _, r := range b.reports {
			l.registry.Report(r)
		}
	case "cached":
		l.cached(at, words[1:])
	case "metrics":
		l.story.Expect(l, at, words[1], l.named(l.metrics.series()))
	case "trust": // of another ConfigMap than trust, if a name follows
		l.trust(at, words[1], cmp.Or(strings.Join(words[2:], ""), "trust"))
	default:
		return l.change(words)
	}
	return true
}

// change changes the directory.
func (l *live) change(words []string) bool {
	path := words[min(1, len(words)-1)]
	if text, err := strconv.Unquote(path); err == nil {
		path = text
	}
	path = filepath.Join(l.dir, path)
	write := func(text string) {
		temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
		must.Do(l, os.WriteFile(temporary, []byte(text), 0o600))
		must.Do(l, os.Rename(temporary, path))
	}
	step := map[string]func(){
		"write":  func() { write(l.story.File(l, words[2])) },
		"remote": func() { write(samples.Remote(words[2], words[3], "")) },
		"size": func() {
			write("")
			must.Do(l, os.Truncate(path, must.Get(strconv.ParseInt(words[2], 10, 64))(l)))
		},
		"folder": func() { must.Do(l, os.MkdirAll(path, 0o700)) },
		"remove": func() { must.Do(l, os.RemoveAll(path)) },
		"link":   func() { must.Do(l, os.Symlink(words[1], filepath.Join(l.dir, words[2]))) },
		"rename": func() { must.Do(l, os.Rename(path, filepath.Join(l.dir, words[2]))) },
	}[words[0]]
	if step != nil {
		step()
	}
	return step != nil
}

func (l *live) start(sources []string) {
	l.stop()
	front := httptest.NewServer(l)
	l.stops = []func(){front.CloseClientConnections, front.Close}
	l.metrics = newMeter()
	c := Config{}
	c.Metrics = l.metrics
	story.Set(l, "start", sources, map[string]func(path string){
		"etcd":      func(string) { c.APIServices, c.CacheFile = l.servers["etcd"].Start(l), filepath.Join(l.dir, ".cache") },
		"client":    func(string) { c.Client = &rest.Config{Host: front.URL, QPS: -1} },
		"away":      func(string) { c.Client = &rest.Config{Host: "http://127.0.0.1:1"} },
		"cluster":   func(string) { c.Cluster = true },
		"directory": func(path string) { c.Directory = filepath.Join(l.dir, path) },
		"policy": func(path string) {
			if c.Policy = path; !strings.HasPrefix(path, "configmap:") {
				c.Policy = filepath.Join(l.dir, path)
			}
		},
	})
	l.registry, l.trusted = must.Get(New(c))(l), map[string]chan string{}
	l.table = l.registry.Table()
	l.stops = append([]func(){must.Run(l, l.registry.Run)}, l.stops...)
}

// ServeHTTP answers for the cluster.
func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	w.Header().Set("Content-Type", "application/json")
	switch path := r.URL.Path; {
	case slices.Contains(l.forbidden, path) && !l.allowed.Load() && (l.streams || !r.URL.Query().Has("sendInitialEvents")):
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"forbidden","reason":"Forbidden","code":403}`)
	case path == "/readyz" && l.unready:
		l.allowed.Store(true)
		http.Error(w, "[-]informer-sync failed", http.StatusInternalServerError)
	case path == "/api" && l.serves != nil:
		fmt.Fprint(w, `{"kind":"APIVersions","apiVersion":"v1","versions":["v1"]}`)
	case path == "/apis" && l.serves != nil:
		var groups []string
		for _, gv := range l.serves {
			group, version, _ := strings.Cut(gv, "/")
			groups = append(groups, fmt.Sprintf(`{"name":%q,"versions":[{"groupVersion":%q,"version":%q}]}`, group, gv, version))
		}
		fmt.Fprintf(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[%s]}`, strings.Join(groups, ","))
	case path == definitions && l.defines != nil:
		fmt.Fprintf(w, `{"items":[{"metadata":{"name":%q}}]}`, l.defines[0])
	case l.defines != nil && path == definitions+"/"+l.defines[0]:
		_, group, _ := strings.Cut(l.defines[0], ".")
		fmt.Fprintf(w, `{"spec":{"group":%q,"versions":[{"name":%q,"served":true}]}}`, group, l.defines[1])
	default:
		l.servers["client"].ServeHTTP(w, r)
	}
}

// paths returns the paths of collections by kind.
func paths() map[string]string {
	return map[string]string{
		"APIService": apiserver.APIServices, "ConfigMap": apiserver.ConfigMaps,
		"Service": apiserver.Services, "EndpointSlice": apiserver.Slices, "Namespace": apiserver.Namespaces,
	}
}

// await waits for a table.
func (l *live) await(at, file string, most time.Duration) {
	if story.Updating() {
		most = 5 * time.Second
	}
	want, text := l.story.File(l, file), ""
	l.last = l.table
	if !must.Becomes(most, func() bool {
		if now := l.registry.Table(); now != l.table || text == "" {
			l.table = now
			text = l.shown()
		}
		return text == want
	}) {
		l.story.Expect(l, at, file, text)
		return
	}
	for _, e := range l.table.Entries() {
		check.Same(l, true, e.Object.ManagedFields == nil, "%s: managed fields of %s are kept", at, e.Name)
	}
}

func (l *live) shown() string {
	text := regexp.MustCompile(`(?m) at \d[\d.hmsµn]*$`).ReplaceAllString(show(l.table), "")
	if !l.table.Complete() {
		text = fmt.Sprintf("incomplete table %d\n%s", l.table.Generation(), text)
	}
	return l.named(text)
}

// named is a text without the story's directory. A name may be no UTF-8.
func (l *live) named(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, l.dir, "DIR"), "?")
}

func (l *live) cached(at string, want []string) {
	m := &remembered{path: filepath.Join(l.dir, ".cache")}
	must.Soon(l, 10*time.Second, fmt.Sprintf("%s: %v cached", at, want), func() bool {
		list, err := m.read()
		if err != nil {
			return false // it is not there yet
		}
		var got []string
		for _, a := range list.Items {
			got = append(got, a.Name)
		}
		return slices.Equal(want, got)
	})
}

func (l *live) trust(at, want, name string) {
	if l.trusted[name] == nil {
		seen := make(chan string)
		l.trusted[name] = seen
		watch := func(ctx context.Context) error {
			last := ""
			return l.registry.Watch(ctx, types.NamespacedName{Namespace: "kube-system", Name: name}, func(data map[string][]byte, err error) {
				now := "none"
				if err == nil {
					now = cmp.Or(string(data["ca"]), "empty")
				}
				if now == last {
					return
				}
				last = now
				select {
				case seen <- now:
				case <-ctx.Done():
				}
			})
		}
		l.stops = append([]func(){must.Run(l, watch)}, l.stops...)
	}
	check.Same(l, want, <-l.trusted[name], "%s: %s", at, name)
}

func TestSourcesThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	policies := t.TempDir()
	for _, name := range []string{"a.yaml", "b.yaml"} {
		must.Do(t, os.WriteFile(filepath.Join(policies, name), []byte("apiVersion: fairlead.dev/v1\nkind: Policy\nroutes: []\n"), 0o600))
	}
	for want, c := range map[string]Config{
		"Policy policy: is already at":              {Directory: t.TempDir(), Policy: policies},
		"neither a local apiserver nor a directory": {},
		"there is no local apiserver":               {Directory: t.TempDir(), Cluster: true},
		"must be a URL":                             {Directory: t.TempDir(), Cluster: true, Client: &rest.Config{Host: "http://a b"}},
		"no such file":                              {Directory: file + "nowhere"},
		"not a directory":                           {Directory: file},
	} {
		check.Fault(t, want, check.Err(New(c)), "New")
	}
}

// Whichever sources there are beside it, a cluster that has no APIServices would be waited for in vain.
func TestClusterWithoutAggregation(t *testing.T) {
	c := apiserver.New(apiserver.APIServices).Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, from := range []Config{
		{Client: c}, {Client: c, Cluster: true, Directory: t.TempDir()}, {Client: c, Cluster: true, APIServices: apiserver.New().Start(t)},
	} {
		check.Fault(t, "dir:", must.Get(New(from))(t).Run(ctx), "Run")
	}
}
