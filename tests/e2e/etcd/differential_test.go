//go:build e2e

package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	aggregatorscheme "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/scheme"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// operation is a request of testdata/requests.txtar, which has the words.
type operation struct {
	method, path string
	words        map[string]string
}

// operationOf reads a step of the story, and returns what it is, too.
func operationOf(words []string) (o operation, name string) {
	o = operation{method: words[0], path: strings.TrimPrefix(words[1], "."), words: map[string]string{}}
	for i, word := range words[2:] {
		if word == "#" {
			return o, strings.Join(words[i+3:], " ")
		}
		key, value, _ := strings.Cut(word, "=")
		o.words[key] = value
	}
	return o, o.method
}

func (o *operation) body() string {
	if o.words["make"] == "" {
		return o.words["body"]
	}
	old, instead, _ := strings.Cut(o.words["set"], ">")
	text := manifest(o.words["make"], o.words["more"], o.words["spec"])
	if tail := o.words["tail"]; tail != "" {
		text = strings.TrimSuffix(text, "}") + tail
	}
	return strings.Replace(text, old, instead, min(len(old), 1))
}

func typeOf(word string) string {
	types := map[string]string{
		"": "application/json", "yaml": "application/yaml", "apply": "application/apply-patch+yaml", "protobuf": "application/vnd.kubernetes.protobuf",
		"jsonPatch": "application/json-patch+json", "mergePatch": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json",
		"table":   "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
		"partial": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
	}
	return types[word]
}

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
	story.Tell(t, func(t *testing.T, s *story.Story) {
		for at, words := range s.Steps() {
			o, name := operationOf(words)
			t.Run(name, func(t *testing.T) { c.compare(t, at, o) })
		}
	})
}

func (c *comparison) compare(t *testing.T, at string, o operation) {
	t.Helper()
	if before := o.words["before"]; before != "" {
		current := must.Get(c.kv.Get(t.Context(), "none"))(t).Header.Revision
		must.Get(c.kv.Compact(t.Context(), current))(t)
		if before == "restart" {
			restart(t, c)
		}
	}
	var answers [2]string
	for i, s := range c.sides {
		suite.Eventually(t, time.Minute, o.words["until"], func() (bool, string) {
			answers[i] = s.ask(t, o)
			return strings.Contains(answers[i], o.words["until"]), answers[i]
		})
	}
	if want := o.words["want"]; want != "" {
		check.Same(t, true, strings.Contains(answers[1], want), "%s: %q is in\n%s", at, want, answers[1])
		return
	}
	check.Same(t, strings.Split(answers[0], "\n"), strings.Split(answers[1], "\n"), "%s: %s %s: -kube-apiserver +fairlead", at, o.method, o.path)
}

const base = "/apis/apiregistration.k8s.io/v1/apiservices"

// ask sends an operation and returns the answer in a comparable form.
func (s *side) ask(t *testing.T, o operation) string {
	t.Helper()
	path, body := s.fill(o.path), s.fill(o.body())
	if !strings.HasPrefix(path, "/apis") {
		path = base + path
	}
	res := must.Get(ask.Do(t.Context(), s.client, o.method, s.base+path, http.Header{
		"Content-Type": {typeOf(o.words["as"])}, "Accept": {typeOf(o.words["accept"])}, "User-Agent": {"kubectl/v1.36.0 (linux/amd64)"},
	}, body))(t)
	text := []byte(res.Body)
	var b strings.Builder
	fmt.Fprintln(&b, res.Code, res.Header.Get("Content-Type"), res.Header["Warning"], "Retry-After:", res.Header.Get("Retry-After"), "Allow:", res.Header.Get("Allow"))
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
		o, _ := must.Get2(aggregatorscheme.Codecs.UniversalDeserializer().Decode(text, nil, nil))(t)
		text = must.Get(json.Marshal(o))(t)
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
	if save := o.words["save"]; save != "" {
		for _, k := range []string{"rv", "uid", "continue"} {
			s.saved[save+"."+k] = s.saved[k]
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

// restart restarts both servers, so that after a compaction neither etcd nor their caches have old revisions.
func restart(t *testing.T, c *comparison) {
	t.Helper()
	for _, p := range []*cluster.Part{c.APIServers[0], c.doors[0].Part} {
		must.Do(t, p.Restart(t.Context()))
	}
}

// manifest returns an APIService as JSON. It inserts more into the metadata and spec into the spec.
func manifest(name, more, spec string) string {
	version, group, _ := strings.Cut(name, ".")
	return fmt.Sprintf(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":%q,"labels":{"suite":"diff"}%s},`+
		`"spec":{"group":%q,"version":%q,"groupPriorityMinimum":100,"versionPriority":10%s}}`, name, more, group, version, spec)
}
