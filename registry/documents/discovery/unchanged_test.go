package discovery

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// If nothing has changed, the document is the same as before. Its ETag is the hash of Kubernetes'
// own encoding, without the kind.
func TestUnchanged(t *testing.T) {
	s := newStage(t)
	s.make(Config{})
	for i := range 1000 {
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
		next.versions[e.GroupVersion] = version{doc: &v}
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
			o.Spec.Group = fmt.Sprintf("fresh%d.example.com", step)
			o.Name = o.Spec.Version + "." + o.Spec.Group
			s.Input.APIServices[o.Name] = o
		case 1:
			delete(s.Input.APIServices, e.Name)
		case 2:
			say(e, fmt.Sprint(step))
		case 3: // the same answer again
			next := sources[e.Backend].Load().next("again")
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
		check.Same(t, false, last != nil && step%6 != 5 && (next.groups == last.groups) != same, "step %d: the document is the same: %v, want %v", step, !same, same) // a priority may leave the order
		last = next

		f, marshalled := next.groups.form(choice{}), must.Get(json.Marshal(listOfParts(next.parts)))(t)
		check.Same(t, strconv.Quote(negotiate.Hash(marshalled)), next.groups.tag().etag, "step %d: ETag", step)
		if step == 59 {
			break // too small to be compressed
		}
		z := must.Get(gzip.NewReader(bytes.NewReader(next.groups.answer(choice{}, true).Body)))(t)
		check.Same(t, true, bytes.Equal(must.Get(io.ReadAll(z))(t), f.body), "step %d: the compressed body", step)
	}
}
