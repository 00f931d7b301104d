//go:build e2e

package etcd

import (
	"bytes"
	std "cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// operation is a request of the script. {x.rv}, {x.uid} and {x.continue} in path and body stand for
// values of the answer saved as x.
type operation struct {
	name, method, path, body string
	contentType              string // empty: JSON
	accept                   string // empty: JSON
	save                     string
	// before runs once before the operation.
	before func(*testing.T, *comparison)
	// differs is why Fairlead answers differently on purpose. Then only want is required in its answer.
	differs, want string
}

// comparison is two servers and their answers so far.
type comparison struct {
	*site
	sides [2]*side // kube-apiserver, Fairlead
}

type side struct {
	base   string
	client *http.Client
	saved  map[string]string
}

// testDifferential sends the same requests to kube-apiserver and Fairlead, which have different prefixes in one etcd.
func testDifferential(t *testing.T, w *world) {
	s := w.site(t, 0, cluster.Config{APIServers: 1})
	d := s.open(t, s.Registry(), "--etcd-prefix=/another")
	c := &comparison{site: s}
	for i, e := range []cluster.Endpoint{s.Endpoint(), d.Endpoint} {
		c.sides[i] = &side{base: e.URL, client: suite.Client(t, e, s.Admin()), saved: map[string]string{}}
	}
	for _, o := range operations() {
		t.Run(o.name, func(t *testing.T) { c.compare(t, o) })
	}
}

func (c *comparison) compare(t *testing.T, o operation) {
	t.Helper()
	if o.before != nil {
		o.before(t, c)
	}
	var answers [2]string
	for i, s := range c.sides {
		answers[i] = s.ask(t, o)
	}
	if o.differs != "" {
		if !strings.Contains(answers[1], o.want) {
			t.Errorf("%s: %q is missing in\n%s", o.differs, o.want, answers[1])
		}
		return
	}
	if diff := cmp.Diff(strings.Split(answers[0], "\n"), strings.Split(answers[1], "\n")); diff != "" {
		t.Errorf("%s %s: -kube-apiserver +fairlead\n%s", o.method, o.path, diff)
	}
}

const base = "/apis/apiregistration.k8s.io/v1/apiservices"

// ask sends an operation and returns the answer in a comparable form.
func (s *side) ask(t *testing.T, o operation) string {
	t.Helper()
	path, body := s.fill(o.path), s.fill(o.body)
	if !strings.HasPrefix(path, "/apis") {
		path = base + path
	}
	res := must.Get(ask.Do(t.Context(), s.client, o.method, s.base+path, http.Header{
		"Content-Type": {std.Or(o.contentType, "application/json")}, "Accept": {std.Or(o.accept, "application/json")}, "User-Agent": {"kubectl/v1.36.0 (linux/amd64)"},
	}, body))(t)
	text := []byte(res.Body)
	var b strings.Builder
	fmt.Fprintln(&b, res.Code, res.Header.Get("Content-Type"), res.Header["Warning"], "Retry-After:", res.Header.Get("Retry-After"), "Allow:", res.Header.Get("Allow"))
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
		text = fromProtobuf(t, text)
	}
	last := ""
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var o any
		err := decoder.Decode(&o)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintf(&b, "%s\n", text)
			}
			break
		}
		s.remember(o)
		data := must.Get(json.MarshalIndent(normal(o), "", " "))(t)
		one := string(data)
		for _, c := range changing {
			one = c.re.ReplaceAllString(one, c.with)
		}
		if bookmark := strings.Contains(one, `"type": "BOOKMARK"`); !bookmark || one != last { // their number depends on timing
			fmt.Fprintln(&b, one)
		}
		last = one
	}
	if o.save != "" {
		for _, k := range []string{"rv", "uid", "continue"} {
			s.saved[o.save+"."+k] = s.saved[k]
		}
	}
	return b.String()
}

func (s *side) fill(text string) string {
	return regexp.MustCompile(`\{\w+\.(rv|uid|continue)\}`).ReplaceAllStringFunc(text, func(m string) string { return s.saved[strings.Trim(m, "{}")] })
}

// remember saves the values of the latest object.
func (s *side) remember(o any) {
	m, _ := o.(map[string]any)
	if inner, ok := m["object"].(map[string]any); ok {
		m = inner
	}
	meta, _ := m["metadata"].(map[string]any)
	for key, field := range map[string]string{"rv": "resourceVersion", "uid": "uid", "continue": "continue"} {
		s.saved[key], _ = meta[field].(string)
	}
}

// normal replaces values that differ between servers: times, versions and identifiers.
func normal(o any) any {
	switch o := o.(type) {
	case map[string]any:
		for k, v := range o {
			switch k {
			case "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "lastTransitionTime", "time", "continue":
				if v != nil && v != "" {
					o[k] = "?"
				}
			case "managedFields":
				o[k] = normal(withoutControllers(v))
			default:
				o[k] = normal(v)
			}
		}
	case []any:
		for i := range o {
			o[i] = normal(o[i])
		}
	}
	return o
}

// withoutControllers drops the fields of the writers of statuses: each server has its own.
func withoutControllers(v any) any {
	entries, _ := v.([]any)
	return slices.DeleteFunc(entries, func(e any) bool {
		m, _ := e.(map[string]any)
		return m["manager"] == "kube-apiserver" || m["manager"] == "fairlead"
	})
}

// changing lists what differs in texts, with its replacement.
var changing = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "?"},
	{regexp.MustCompile(`(resource version: |current: |resourceVersion\\+":\\+"|\()\d+`), "$1?"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "?"},
	{regexp.MustCompile(`"\d+(s|ms|m)"`), `"?"`},               // ages in tables
	{regexp.MustCompile(`\bv1\.[a-z0-9]{5}([\\"])`), "v1.?$1"}, // of generateName
	{regexp.MustCompile(`/another/`), "/registry/"},
}

// restart compacts etcd and restarts both servers, so that neither etcd nor their caches have old revisions.
func restart(t *testing.T, c *comparison) {
	t.Helper()
	compact(t, c)
	for _, p := range []*cluster.Part{c.APIServers[0], c.doors[0].Part} {
		must.Do(t, p.Restart(t.Context()))
	}
}

// compact compacts etcd at its current revision.
func compact(t *testing.T, c *comparison) {
	t.Helper()
	res, err := c.kv.Get(t.Context(), "none")
	must.Do(t, err)
	must.Get(c.kv.Compact(t.Context(), res.Header.Revision))(t)
}
