package documents_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

func TestMain(m *testing.M) { must.Main(m) }

// words is what a backend has said.
type words string

// The steps of these stories, beside those of scene.Tell. A backend is asked for a path with the
// APIServices that it is asked for.
//
//	server <name> says <word> [late]|dawdles|hangs|refuses   home is the local apiserver; without it there is none
//	open [verdicts]                          verdicts matter
//	hint [<n>]                               that the local apiserver's documents have changed; n times, each after 1 ms
//	touch
//	unread true|false                        whether the local apiserver's documents cannot be read
//	endpoint <service> <address>
//	annotate|revise <apiservice> <text>      an annotation, or its resourceVersion
//
// Expect shows how often documents were published since, what each APIService's backend has said,
// and how many requests hang.
func TestStories(t *testing.T) {
	scene.Tell(t, func(tb testing.TB) *scene.Scene {
		s, published, home, healthy := scene.New(tb), 0, false, true
		var hanging atomic.Int32
		var sources *documents.Sources[words, words]
		ask := func(ctx context.Context, known *words, entries []*registry.Entry) (*words, bool, error) {
			var names []string
			for _, e := range entries {
				names = append(names, e.Name)
			}
			cfg := s.Config()
			a, err := documents.Get(ctx, cfg.From(entries[0]), documents.Question{Path: "/" + strings.Join(names, ","), Timeout: time.Hour})
			if err != nil {
				return known, false, err
			}
			next := words(a.Body)
			return &next, next != *known, nil
		}
		s.Own = map[string]func([]string){
			"server": func(w []string) {
				s.Set(w[0], map[string]http.HandlerFunc{
					"says": http.HandlerFunc(func(to http.ResponseWriter, _ *http.Request) {
						if len(w) > 3 { // late, so that what is published at the start comes before
							<-time.After(time.Millisecond)
						}
						fmt.Fprint(to, w[2])
					}),
					"dawdles": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-time.After(100 * time.Millisecond) }),
					"hangs": func(_ http.ResponseWriter, r *http.Request) {
						hanging.Add(1)
						<-r.Context().Done()
						hanging.Add(-1)
					},
				}[w[1]])
				home = home || w[0] == scene.Home
			},
			"open": func(w []string) {
				cfg := s.Config()
				cfg.Ready = func(string) bool { return healthy }
				fetch := cfg.Local("")
				if !home {
					cfg.Local = nil
				}
				sources = documents.New(cfg, documents.Kind[words, words]{
					Name: "test", Ask: ask, Verdicts: len(w) > 0,
					Every: 2 * time.Second,
					AskLocal: func(ctx context.Context, _ string, _ *atomic.Pointer[words]) error {
						_, err := documents.Get(ctx, fetch, documents.Question{Path: "/"})
						return err
					},
					Join:    func(s, _ *words) *words { return s },
					Publish: func(*registry.Table) time.Time { published++; return time.Time{} },
					Status:  func(func(documents.Freshness)) {},
					Sizes:   func(func(string, int)) {},
				})
				s.Built = sources.Wake
				must.Run(s, sources.Run)
			},
			"hint": func(w []string) {
				if len(w) == 0 {
					sources.LocalChanged("")
					return
				}
				for range must.Get(strconv.Atoi(w[0]))(s) {
					sources.LocalChanged("")
					s.Pass(time.Millisecond)
				}
			},
			"touch": func([]string) { sources.Touch() },
			"unread": func(w []string) {
				check.Same(s, w[0], fmt.Sprint(sources.Unread() != nil), "a healthy local apiserver's cannot be read")
				healthy = false
				check.Same(s, true, sources.Unread() == nil, "what an unhealthy one has is no fault")
				healthy = true
			},
			"endpoint": func(w []string) {
				service := types.NamespacedName{Namespace: "x", Name: w[0]}
				slice := s.Input.Slices[service][0].DeepCopy()
				slice.Endpoints[0].Addresses = []string{w[1]}
				s.Input.Slices[service] = []*discoveryv1.EndpointSlice{slice}
				s.Build()
			},
			"annotate": func(w []string) {
				edit(s, w[0]).Annotations = map[string]string{"x": w[1]}
				s.Build()
			},
			"revise": func(w []string) {
				edit(s, w[0]).ResourceVersion = w[1]
				s.Build()
			},
		}
		s.Show = func() string {
			var b strings.Builder
			fmt.Fprintf(&b, "published %d, hanging %d\n", published, hanging.Load())
			published = 0
			for _, e := range s.Table().Entries() {
				if e.Backend != nil {
					fmt.Fprintf(&b, "%s: %s\n", e.Name, *sources.Known(e.Backend).Load())
				}
			}
			return b.String()
		}
		return s
	})
}

// edit replaces an APIService by a copy, which it returns.
func edit(s *scene.Scene, name string) *apiregistrationv1.APIService {
	o := s.Input.APIServices[name].DeepCopy()
	s.Input.APIServices[name] = o
	return o
}

func TestAskable(t *testing.T) {
	for verdict, want := range map[corev1.ConditionStatus]bool{"": true, corev1.ConditionUnknown: true, corev1.ConditionTrue: true, corev1.ConditionFalse: false} {
		e := &registry.Entry{Endpoints: []registry.Endpoint{{Address: "10.0.0.1:443"}}, Verdict: registry.Verdict{Status: verdict}}
		check.Same(t, true, documents.Askable(e) == want, "with a verdict of %q: %v", verdict, !want)
		e.Endpoints = nil
		check.Same(t, false, documents.Askable(e), "with a verdict of %q, without an endpoint", verdict)
	}
	for _, tt := range []struct {
		reason    string
		all, want bool // all endpoints answer that they have no such group-version
	}{
		{registry.ReasonFailedDiscoveryCheck, true, true},
		{registry.ReasonFailedDiscoveryCheck, false, false},
		{registry.ReasonMaintenance, true, false},
	} {
		e := &registry.Entry{Endpoints: []registry.Endpoint{{Gone: true}, {Gone: tt.all}}, Verdict: registry.Verdict{Status: corev1.ConditionFalse, Reason: tt.reason}}
		check.Same(t, tt.want, documents.Askable(e), "%+v", tt)
	}
}
