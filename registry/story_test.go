package registry

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

// A story is a script of steps, one a line, over the files of its archive:
//
//	options <word>…            clusterip, loopback, urls, directory, unprotected, zone-a; before the first apply
//	apply <file>…              new or changed objects
//	beside <file>…             the same, of a cluster beside a directory, or of both below etcd
//	relist <kind> <file>…      all objects of a kind
//	delete <kind> <ns>/<name>  kinds: APIService, Service, EndpointSlice, and beside (an APIService)
//	hides <gv> <definition>    the only CustomResourceDefinition of a remote's group-version; without words: none
//	report <apiservice> <address> healthy|slow|unhealthy|badca [cause]
//	pass <duration>
//	same                       the last step made no new table
//	rebuild <duration>|never   when time alone changes the table, from now on
//	backend <apiservice> same|new    compared with the last step of this kind
//	shared <apiservice>…       they have one Backend
//	alone <apiservice>…        none has the Backend of another APIService
//	expect <file>              the table, as text
//	policy <file>              the policy; a faulty one leaves the last
//	namespace <name> <label>=<value>…
//	for <apiservice> <what>=<value>… <server>    to which server a request goes: resource, namespace…
//	match <route>[=<apiservice>|=<group>] <path>    a path may be quoted as in Go
//
// Those of live follow.
func TestStories(t *testing.T) { story.Tell(t, tell) }

type teller struct {
	*testing.T
	story    *story.Story
	objects  *objects
	options  Options
	now      time.Time
	table    *Table
	last     *Table
	backends map[string]*Backend

	routed
}

func tell(t *testing.T, script *story.Story) {
	s := &teller{T: t, story: script, objects: newObjects(), now: time.Unix(0, 0).UTC(), backends: make(map[string]*Backend)}
	s.table = Build(Input{Options: &s.options}, nil)
	s.last = s.table
	l := newLive(s)
	for at, words := range script.Steps() {
		if !l.step(at, words) {
			s.step(at, words)
		}
	}
}

func (s *teller) step(at string, words []string) {
	b := batch{objects: make(map[key]runtime.Object)}
	switch words[0] {
	case "options":
		s.setOptions(words[1:])
		return
	case "relist":
		b.replaced[kindsByName()[words[1]]] = true
		s.read(words[2:], words[1] == "beside", &b)
	case "apply", "beside":
		s.read(words[1:], words[0] == "beside", &b)
	case "match":
		s.match(at, words[1], words[2])
		return
	case "delete":
		ns, name, _ := strings.Cut(words[2], "/")
		b.objects[key{kindsByName()[words[1]], types.NamespacedName{Namespace: ns, Name: name}}] = nil
	case "policy":
		s.setPolicy(words[1], &b)
	case "namespace":
		s.namespaces.Set(words[1], labelsOf(words[2:]))
		return
	case "for":
		s.asked(at, words[1:])
		return
	case "hides":
		b.shadowed = map[schema.GroupVersion]string{}
		if len(words) > 1 {
			b.shadowed[must.Get(schema.ParseGroupVersion(words[1]))(s)] = words[2]
		}
	case "report":
		s.report(words[1:], &b)
	case "pass":
		s.now = s.now.Add(must.Get(time.ParseDuration(words[1]))(s))
		return
	case "same":
		check.Same(s, true, s.table == s.last, "%s: a new table, generation %d:\n%s", at, s.table.Generation(), show(s.table))
		return
	case "rebuild":
		due := "never"
		if at := s.table.rebuildAt; !at.IsZero() {
			due = at.Sub(s.now).String()
		}
		check.Same(s, words[1], due, "%s: the rebuild is due", at)
		return
	case "backend":
		now := s.table.named(words[1]).Backend
		check.Same(s, words[2] == "same", now == s.backends[words[1]], "%s: same backend", at)
		s.backends[words[1]] = now
		return
	case "shared", "alone":
		s.compare(at, words[0] == "shared", words[1:])
		return
	case "expect":
		s.story.Expect(s, at, words[1], show(s.table))
		return
	default:
		s.Fatalf("%s: unknown step %s", at, words[0])
	}
	s.objects.apply(&b)
	s.last = s.table
	s.table = s.build(b.reports, s.table)
	s.checkUpdate(at)
}

// checkUpdate checks that the updated table is like one built from all objects, and that what is
// equal is the same pointer as in the table before.
func (s *teller) checkUpdate(at string) {
	s.Helper()
	check.Same(s, layoutOf(s.build(nil, nil)), layoutOf(s.table), "%s: the updated table, like a new one", at)
	for _, e := range s.table.Servers() {
		old := s.last.server(e.Name)
		if old == nil || old == e {
			continue
		}
		check.Same(s, false, reflect.DeepEqual(old, e) || old.Backend != e.Backend && e.Backend != nil && old.Backend != nil && *old.Backend == *e.Backend, "%s: an equal entry or Backend of %s is another pointer", at, e.Name)
	}
}

// compare checks whether the named APIServices share one Backend, or share it with none.
func (s *teller) compare(at string, shared bool, names []string) {
	first := s.table.named(names[0]).Backend
	for _, e := range s.table.Entries() {
		named := slices.Contains(names, e.Name)
		check.Same(s, false, shared && named && e.Backend != first, "%s: %s has another Backend than %s", at, e.Name, names[0])
		for _, n := range names {
			other := s.table.named(n).Backend
			check.Same(s, false, !shared && n != e.Name && e.Backend != nil && *e.Backend == *other, "%s: %s has a Backend that equals that of %s", at, e.Name, n)
		}
	}
}

func (s *teller) build(reports map[reportKey]Report, prev *Table) *Table {
	in := Input{
		APIServices: s.objects.apiServices, Services: s.objects.services[kindService], Slices: s.objects.grouped[kindSlice],
		FallbackServices: s.objects.services[kindFallbackService], FallbackSlices: s.objects.grouped[kindFallbackSlice],
		policy: s.objects.policy, Options: &s.options, Problems: s.objects.faults(), Shadowed: s.objects.shadowed, Complete: true, Now: s.now,
	}
	if prev != nil {
		in.Touched = s.objects.touched
	}
	for _, r := range reports {
		in.Reports = append(in.Reports, r)
	}
	return Build(in, prev)
}

// layoutOf describes what must not depend on a table's history: everything except probe results.
func layoutOf(t *Table) string {
	var b strings.Builder
	for _, e := range t.Servers() {
		fmt.Fprintf(&b, "%s %v %v %v\n", e.Name, e.Local(), e.Problems, e.Hidden)
		for _, p := range e.Endpoints {
			fmt.Fprintf(&b, "  %s %v %v\n", p.Address, p.Terminating, p.Far)
		}
	}
	for _, g := range t.Groups() {
		fmt.Fprintf(&b, "%s %d", g.Name, g.Priority)
		for _, e := range g.Entries {
			fmt.Fprintf(&b, " %s", e.GroupVersion.Version)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (s *teller) setOptions(words []string) {
	all := map[string]func(){
		"clusterip":   func() { s.options.ClusterIPRouting = true },
		"loopback":    func() { s.options.Reach.AllowLoopback = true },
		"urls":        func() { s.options.AllowURLs = true },
		"directory":   func() { s.options.Directory = true },
		"unprotected": func() { s.options.ProtectedGroups = []string{} },
		"zone-a":      func() { s.options.Zone = "a" },
	}
	for _, w := range words {
		all[w]()
	}
}

func (s *teller) report(words []string, b *batch) {
	e := s.table.server(words[0])
	must.Be(s, e != nil, "report about %s, which is not in the table", words[0])
	r := Report{Name: words[0], Backend: e.Backend, Endpoint: Endpoint{Address: words[1], Message: strings.Join(words[3:], " ")}}
	switch words[2] {
	case "healthy", "slow":
		r.Health, r.Slow = Healthy, words[2] == "slow"
	case "unhealthy":
		r.Health, r.Reason = Unhealthy, ReasonFailedDiscoveryCheck
	case "badca":
		r.Health, r.Reason = Unhealthy, ReasonInvalidCABundle
	default:
		s.Fatalf("unknown health %s", words[2])
	}
	b.reports = map[reportKey]Report{{r.Name, r.Address, r.Backend}: r}
}

func kindsByName() map[string]kind {
	return map[string]kind{"APIService": kindAPIService, "Service": kindService, "EndpointSlice": kindSlice, "beside": kindFallback}
}

func (s *teller) read(files []string, beside bool, b *batch) {
	theirs := map[kind]kind{kindAPIService: kindFallback, kindService: kindFallbackService, kindSlice: kindFallbackSlice}
	for _, o := range s.decode(files) {
		k := keyOf(o)
		if beside {
			k.kind = theirs[k.kind]
		}
		b.objects[k] = o
	}
}

// decode decodes the objects of files, separated by ---.
func (s *teller) decode(files []string) (out []apiserver.Object) {
	for _, file := range files {
		for doc := range strings.SplitSeq(s.story.File(s, file), "---\n") {
			var m struct {
				Kind string `json:"kind"`
			}
			must.Do(s, yaml.Unmarshal([]byte(doc), &m))
			o := map[string]apiserver.Object{
				"APIService": &apiregistrationv1.APIService{}, "ConfigMap": &corev1.ConfigMap{},
				"Service": &corev1.Service{}, "EndpointSlice": &discoveryv1.EndpointSlice{}, "Namespace": &corev1.Namespace{},
			}[m.Kind]
			must.Be(s, o != nil, "%s: unknown kind %q", file, m.Kind)
			must.Do(s, yaml.UnmarshalStrict([]byte(doc), o))
			out = append(out, o)
		}
	}
	return out
}

func (s *teller) match(at, want, path string) {
	if text, err := strconv.Unquote(path); err == nil {
		path = text
	}
	m := s.table.Match(path)
	got := [...]string{"local", "remote", "document", "own", "invalid", "refused", "hidden"}[m.Route]
	if m.Entry != nil {
		got += "=" + m.Entry.Name
	}
	if m.Group != "" {
		got += "=" + m.Group
	}
	check.Same(s, want, got, "%s: %q", at, path)
}

// show writes a table as text.
func show(t *Table) string {
	var b strings.Builder
	for _, e := range t.Servers() {
		v := e.Verdict
		fmt.Fprintf(&b, "%s %s", e.Name, strings.TrimSpace(fmt.Sprintf("%s %s", v.Status, v.Reason)))
		if v.Message != "" {
			fmt.Fprintf(&b, " %q", v.Message)
		}
		if managed := e.Object.Labels["kube-aggregator.kubernetes.io/automanaged"]; managed != "" {
			fmt.Fprintf(&b, " managed %s", managed)
		}
		if e.Rule != nil {
			fmt.Fprintf(&b, " by %s", e.Rule.Where)
		}
		if e.StandIn != nil {
			fmt.Fprintf(&b, " stands in: %s", e.StandIn.Name)
		}
		if e.Hidden != "" {
			fmt.Fprintf(&b, " hidden by %s", e.Hidden)
		}
		if !v.Since.IsZero() {
			fmt.Fprintf(&b, " at %s", v.Since.Sub(time.Unix(0, 0)))
		}
		b.WriteByte('\n')
		for _, p := range e.Endpoints {
			fmt.Fprintf(&b, "  %s %s", p.Address, [...]string{"unprobed", "healthy", "unhealthy"}[p.Health])
			if p.Terminating {
				b.WriteString(" terminating")
			}
			if p.Far {
				b.WriteString(" far")
			}
			if p.Slow {
				b.WriteString(" slow")
			}
			if !p.Since.IsZero() {
				fmt.Fprintf(&b, " at %s", p.Since.Sub(time.Unix(0, 0)))
			}
			b.WriteByte('\n')
		}
		for _, p := range e.Problems {
			fmt.Fprintf(&b, "  problem: %s\n", p)
		}
		if e.Backend != nil && e.Backend.CAFrom != "" {
			fmt.Fprintf(&b, "  trusts ConfigMap %s/%s\n", e.Backend.Namespace, e.Backend.CAFrom)
		}
	}
	for _, p := range t.Problems() {
		fmt.Fprintf(&b, "%s: %s\n", map[bool]string{true: "note", false: "problem"}[p.Note], p)
	}
	b.WriteString("groups:")
	for _, g := range t.Groups() {
		name := g.Name
		if name == "" {
			name = "core"
		}
		var versions []string
		for _, e := range g.Entries {
			versions = append(versions, e.GroupVersion.Version)
		}
		fmt.Fprintf(&b, " %s(%s)", name, strings.Join(versions, ","))
	}
	b.WriteByte('\n')
	return b.String()
}
