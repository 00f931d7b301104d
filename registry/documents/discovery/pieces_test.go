package discovery

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// A document of pieces equals, byte by byte, Kubernetes' own encoding of all groups; so do its ETag
// and its decompressed gzip form. If nothing has changed, the text is the same as before.
func TestPieces(t *testing.T) {
	s := newStage(t)
	s.make(Config{})
	const n = 1000
	for i := range n {
		group := fmt.Sprintf("group%d.example.com", i/2)
		version := fmt.Sprintf("v%d", i%2+1)
		s.Input.APIServices[version+"."+group] = &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group}, Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 100,
			Service: &apiregistrationv1.ServiceReference{Namespace: "x", Name: fmt.Sprint(i % 100)},
		}}
	}
	s.Build()
	sources := map[*registry.Backend]*source{}
	say := func(e *registry.Entry, names ...string) {
		v := resources(e.GroupVersion.Version, append(names, "<&>\u2028", "\xff")...)
		next := sources[e.Backend].Load().next("")
		next.versions[e.GroupVersion], next.content = &version{doc: &v}, new(content)
		sources[e.Backend].Store(next)
	}
	for _, e := range s.Table().Entries() {
		if sources[e.Backend] == nil {
			sources[e.Backend] = &source{}
			sources[e.Backend].Store(&state{})
		}
		if len(e.Name)%5 > 0 { // others have not been fetched yet
			say(e, e.Name)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	local, last := &localState{}, (*view)(nil)
	for step := range 60 {
		e := s.Table().Entries()[rng.IntN(len(s.Table().Entries()))]
		same := false
		switch step % 6 {
		case 0:
			o := e.Object.DeepCopy()
			o.Name, o.Spec.Group = fmt.Sprintf("v1.fresh%d.example.com", step), fmt.Sprintf("fresh%d.example.com", step)
			s.Input.APIServices[o.Name] = o
		case 1:
			delete(s.Input.APIServices, e.Name)
		case 2:
			say(e, fmt.Sprint(step))
		case 3: // the same answer again
			next := sources[e.Backend].Load().next("again")
			next.content = sources[e.Backend].Load().content
			sources[e.Backend].Store(next)
			same = true
		case 4:
			local, same = &localState{}, true
		case 5:
			o := e.Object.DeepCopy()
			o.Spec.VersionPriority = int32(1000 + step)
			s.Input.APIServices[o.Name] = o
		}
		s.Build()
		m := &merge{table: s.Table(), sources: func(b *registry.Backend) *source { return sources[b] }}
		if step == 59 {
			m.table, last = registry.Build(registry.Input{Complete: true}, nil), nil
		}
		next := s.d.render(m, local, last)
		if pieces := n / 2 / pieceGroups; step == 0 && (len(next.pieces) < pieces/2 || len(next.pieces) > 2*pieces) {
			t.Errorf("%d pieces, want about %d: a change should compress little", len(next.pieces), pieces)
		}
		fresh := len(next.pieces)
		for _, p := range next.pieces {
			if last != nil && slices.ContainsFunc(last.pieces, func(o piece) bool { return o.text == p.text }) {
				fresh--
			}
		}
		if last != nil && (fresh > 2 || (next.groups == last.groups) != (fresh == 0 && len(next.pieces) == len(last.pieces)) || same && fresh > 0) {
			t.Errorf("step %d: %d of %d pieces are new", step, fresh, len(next.pieces))
		}
		last = next

		list := &apidiscoveryv2.APIGroupDiscoveryList{Items: groupsOf(m.parts(m.groups()...))}
		sheet := &sheet{header: make(http.Header)}
		s.d.codecs.writeAggregated(sheet, list, "application/json", false)
		marshalled := must.Get(json.Marshal(list))(t)
		f := next.groups.form(choice{})
		if !bytes.Equal(f.plain(), sheet.body.Bytes()) || f.body.size() != sheet.body.Len() {
			t.Fatalf("step %d: the text is not Kubernetes'", step)
		}
		if want := fmt.Sprintf("%q", negotiate.Hash(marshalled)); next.groups.tag().etag != want {
			t.Errorf("step %d: ETag %s, want %s", step, next.groups.tag().etag, want)
		}
		z := must.Get(gzip.NewReader(bytes.NewReader(f.body.gzip())))(t)
		z.Multistream(false)
		if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, f.plain()) {
			t.Errorf("step %d: compressed: %d bytes, want %d, %v", step, len(got), len(f.plain()), err)
		}
	}
}

// When one CRD changes, the pieces of all others stay the same, and are not encoded and compressed
// again.
func TestWhatIsSaidAgainIsTheSame(t *testing.T) {
	s := newStage(t)
	s.make(Config{})
	groups := func(change string) map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery {
		s.Set(scene.Home, serving(listOf("a.example.com/v1=things", "b.example.com/v1=things"+change)))
		must.Do(t, s.d.askLocal(t.Context()))
		return s.d.local.Load().groups
	}
	before := groups("")
	now := groups(",others")
	a, b := schema.GroupVersion{Group: "a.example.com", Version: "v1"}, schema.GroupVersion{Group: "b.example.com", Version: "v1"}
	if now[a] != before[a] || now[b] == before[b] || len(now[b].Resources) != 2 {
		t.Errorf("the unchanged one is the same: %v; the changed one: %v, with %d resources", now[a] == before[a], now[b] == before[b], len(now[b].Resources))
	}
}
