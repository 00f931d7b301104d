package documents

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Documents are made again only if something in them has changed. With ten thousand APIServices,
// most new tables differ in a verdict or an endpoint.
func TestMatters(t *testing.T) {
	backend := &registry.Backend{Service: "a"}
	was := entry("v1.a.io", backend, corev1.ConditionTrue)
	for _, tc := range []struct {
		name           string
		change         func(e *registry.Entry)
		want, verdicts bool
	}{
		{name: "nothing", change: func(*registry.Entry) {}},
		{name: "another endpoint", change: func(e *registry.Entry) { e.Endpoints = nil }},
		{name: "a verdict", change: func(e *registry.Entry) { e.Verdict.Status = corev1.ConditionFalse }, verdicts: true},
		{name: "another version priority", change: func(e *registry.Entry) { e.Object.Spec.VersionPriority = 11 }, want: true},
		{name: "another group priority", change: func(e *registry.Entry) { e.Object.Spec.GroupPriorityMinimum = 11 }, want: true},
		{name: "another backend", change: func(e *registry.Entry) { e.Backend = &registry.Backend{Service: "a"} }, want: true},
		{name: "refused", change: func(e *registry.Entry) { e.Verdict.Reason = registry.ReasonProtectedGroup }, want: true},
	} {
		now := entry("v1.a.io", backend, corev1.ConditionTrue)
		tc.change(now)
		for _, verdicts := range []bool{false, true} {
			s := &Sources[book]{kind: Kind[book]{Verdicts: verdicts}}
			check.Same(t, tc.want || verdicts && tc.verdicts, s.matters(latest.Change[*registry.Entry]{Old: was, New: now}), "%s, if verdicts matter %v", tc.name, verdicts)
		}
	}
}

func TestPublishedWhenItMatters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := entry("v1.a.io", nil, "").Object
		object.Spec = apiregistrationv1.APIServiceSpec{Group: "a.io", Version: "v1"}
		in := registry.Input{APIServices: map[string]*apiregistrationv1.APIService{object.Name: object}, Options: &registry.Options{}, Complete: true}
		var table atomic.Pointer[registry.Table]
		published := 0
		s := must.Get(New(Config{
			Table: table.Load,
			Fetch: func(context.Context, *registry.Entry, *http.Request) (*http.Response, error) {
				return nil, context.Canceled
			},
		}, Kind[book]{
			Name:    "test",
			Ask:     func(context.Context, *book, []*registry.Entry) (*book, bool, error) { return nil, false, nil },
			Publish: func(*registry.Table) time.Time { published++; return time.Time{} },
			Status:  func(func(Freshness)) {},
			Sizes:   func(func(string, int)) {},
		}))(t)
		table.Store(registry.Build(in, nil))
		must.Run(t, s.Run)
		for _, step := range []struct {
			name   string
			change func()
			want   int
		}{
			{"the start", func() {}, 1},
			{"a label", func() { object.Labels = map[string]string{"a": "b"} }, 0},
			{"another priority", func() { object.Spec.VersionPriority = 11 }, 1},
			{"something a backend has said", s.Touch, 1},
			{"incomplete", func() { in.Complete = false }, 1},
			{"nothing left", func() { delete(in.APIServices, object.Name) }, 1},
		} {
			object = object.DeepCopy()
			in.APIServices[object.Name] = object
			step.change()
			table.Store(registry.Build(in, table.Load()))
			// These tables do not supersede each other. The token wakes the set instead, without a
			// claim that something must be published.
			select {
			case s.changed <- time.Time{}:
			default:
			}
			time.Sleep(time.Second)
			synctest.Wait()
			check.Same(t, step.want, published, "%s: times published", step.name)
			published = 0
		}
	})
}
