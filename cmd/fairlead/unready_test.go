package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A replica without a healthy apiserver closes its clients' connections: behind a TCP load balancer
// nothing else moves them to another replica.
func TestUnreadySendsClientsAway(t *testing.T) {
	d, ill := aloneDoor(t), atomic.Bool{}
	d.ready.List = append(d.ready.List, healthz.NamedCheck("test", func(*http.Request) error {
		if ill.Load() {
			return errors.New("no local apiserver is healthy")
		}
		return nil
	}))
	d.start(t)
	for _, http2 := range []bool{true, false} {
		c, kept := clientOf(t, http2, nil), false
		ask := func() int {
			trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { kept = i.Reused }}
			r := must.Get(http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, urlOf(d.ports.front)+"/readyz", nil))(t)
			res := must.Get(c.Do(r))(t)
			defer res.Body.Close()
			_, _ = io.Copy(io.Discard, res.Body)
			return res.StatusCode
		}
		for _, is := range []bool{false, true, false} {
			ill.Store(is)
			want := map[bool]int{false: http.StatusOK, true: http.StatusInternalServerError}[is]
			changed := func() bool { return ask() == want && kept != is }
			for range 3 {
				must.Soon(t, 20*time.Second, fmt.Sprintf("HTTP/2 %v, ill %v: readiness and connections change", http2, is), func() bool {
					for range 4 {
						if !changed() {
							return false
						}
						if http2 && is { // a GOAWAY comes within a look
							break
						}
					}
					return true
				})
			}
		}
	}
}

// A replica that has just started is ready when it has probed each APIService once, or after two
// seconds, and later ones do not count.
func TestReadyWithVerdicts(t *testing.T) {
	in := registry.Input{Options: &registry.Options{Directory: true, AllowURLs: true}, APIServices: map[string]*apiregistrationv1.APIService{}, Complete: true, Now: time.Now()}
	add := func(group string, annotations map[string]string) {
		in.APIServices["v1."+group] = &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1." + group, Annotations: annotations}, Spec: apiregistrationv1.APIServiceSpec{Group: group, Version: "v1"},
		}
	}
	add("local.example.com", nil)
	local := registry.Build(in, nil)
	add("remote.example.com", map[string]string{"fairlead.dev/url": "https://10.0.0.1"})
	unprobed := registry.Build(in, local)
	e := unprobed.Entries()[1]
	in.Reports = []registry.Report{{Name: e.Name, Backend: e.Backend, Endpoint: registry.Endpoint{Address: e.Endpoints[0].Address, Health: registry.Unhealthy}}}
	probed := registry.Build(in, unprobed)
	for _, tc := range []struct {
		name   string
		tables []*registry.Table // one after the other
		after  time.Duration     // between two
		want   []error
	}{
		{"nothing is known", []*registry.Table{registry.Build(registry.Input{}, nil)}, 0, []error{errNoTable}},
		{"nothing to probe", []*registry.Table{local}, 0, []error{nil}},
		{"probed", []*registry.Table{unprobed, unprobed, probed}, firstVerdicts / 3, []error{errNoVerdicts, errNoVerdicts, nil}},
		{"no verdict", []*registry.Table{unprobed, unprobed, unprobed}, firstVerdicts / 2, []error{errNoVerdicts, errNoVerdicts, nil}},
		{"a later one", []*registry.Table{local, unprobed}, 0, []error{nil, nil}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var table *registry.Table
				ready := tableReady(func() *registry.Table { return table })
				for i := range tc.tables {
					table = tc.tables[i]
					if err := ready(nil); !errors.Is(err, tc.want[i]) {
						t.Errorf("table %d: %v, want %v", i, err, tc.want[i])
					}
					<-time.After(tc.after)
				}
			})
		})
	}
}
