package proxy

import (
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
)

// current holds a world's current table.
type current struct{ atomic.Pointer[registry.Table] }

// buildTable makes a table with a remote group-version, served by w.remote, and a local one.
func buildTable(t testing.TB, w *world, c worldConfig) *registry.Table {
	t.Helper()
	address := netip.MustParseAddrPort(w.remote.Listener.Addr().String())
	port := int32(address.Port())
	remote := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.remote.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "remote.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: w.serving.PEM(),
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "ext", Port: new(int32(443))},
		},
	}
	if c.change != nil {
		c.change(remote)
	}
	key := types.NamespacedName{Namespace: "default", Name: "ext"}
	options := &registry.Options{}
	options.Reach.AllowLoopback = true
	in := registry.Input{
		APIServices: map[string]*apiregistrationv1.APIService{
			remote.Name: remote,
			"v1.apps": {ObjectMeta: metav1.ObjectMeta{Name: "v1.apps"}, Spec: apiregistrationv1.APIServiceSpec{
				Group: "apps", Version: "v1", GroupPriorityMinimum: 17800, VersionPriority: 15,
			}},
		},
		Services: map[types.NamespacedName]*corev1.Service{key: {
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ext"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		}},
		Slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{key: {{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ext-1"}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports:     []discoveryv1.EndpointPort{{Name: new("https"), Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address.Addr().String()}}},
		}}},
		Options: options, Complete: !c.incomplete, Now: time.Now(),
	}
	if c.also != nil {
		c.also(&in)
	}
	first := registry.Build(in, w.current.Load())
	for _, e := range first.Entries() {
		for _, ep := range e.Endpoints {
			h := registry.Report{Name: e.Name, Backend: e.Backend, Address: ep.Address, Health: registry.Healthy}
			if c.unhealthy {
				h.Health, h.Reason, h.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, "dial tcp 10.1.2.3:443: refused"
			}
			if c.judge != nil {
				c.judge(&h)
			}
			in.Reports = append(in.Reports, h)
		}
	}
	return registry.Build(in, first)
}

func TestActionOf(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	documents, local := http.NotFoundHandler(), p.cfg.Local
	for _, tt := range []struct {
		route             registry.Route
		both, none, alone Action // with a local apiserver and documents, with the former only, with neither
	}{
		{registry.RouteLocal, ToLocal, ToLocal, ToPage},
		{registry.RouteRemote, ToRemote, ToRemote, ToRemote},
		{registry.RouteDocument, ToDocument, ToLocal, ToPage},
		{registry.RouteOwn, ToPage, ToPage, ToPage},
		{registry.RouteInvalid, Refuse, Refuse, Refuse},
		{registry.RouteRefused, Refuse, Refuse, Refuse},
	} {
		p.cfg.Local, p.cfg.Documents = local, documents
		both := p.actionOf(tt.route)
		p.cfg.Documents = nil
		none := p.actionOf(tt.route)
		p.cfg.Local = nil
		if alone := p.actionOf(tt.route); both != tt.both || none != tt.none || alone != tt.alone {
			t.Errorf("%v: %v, without documents %v, alone %v", tt.route, both, none, alone)
		}
	}
}

// A remote that claims a protected group gets no request.
func TestProtectedGroup(t *testing.T) {
	_, p := thinker(t, worldConfig{also: func(in *registry.Input) {
		thief := in.APIServices["v1.remote.example.com"].DeepCopy()
		thief.Name, thief.Spec.Group = "v1.batch", "batch"
		in.APIServices[thief.Name] = thief
	}})
	if d, _ := p.decision(t.Context(), asBob("/apis/batch/v1/jobs", ""), nil, true); d.Action != Refuse || !apierrors.IsServiceUnavailable(d.Err) {
		t.Errorf("%v (%v)", d.Action, d.Err)
	}
}

// With the dir: registry, Fairlead itself serves apiregistration.k8s.io, also while the table is
// incomplete, and without a local apiserver.
func TestOwnGroup(t *testing.T) {
	_, p := thinker(t, worldConfig{incomplete: true, also: func(in *registry.Input) { in.Options.Directory = true }})
	for _, local := range []*backend.Local{p.cfg.Local, nil} {
		p.cfg.Local = local
		for query, long := range map[string]bool{"": false, "watch=1": true} {
			d, _ := p.decision(t.Context(), asBob("/apis/apiregistration.k8s.io/v1/apiservices", query), nil, true)
			if d.Action != ToPage || d.LongRunning != long {
				t.Errorf("?%s, beside %v: %v, long-running %v (%v)", query, local, d.Action, d.LongRunning, d.Err)
			}
		}
	}
}

// A request keeps the table by which it was decided. Here another table, without the APIService,
// replaces it during authorization.
func TestOneTableForARequest(t *testing.T) {
	widgets := remoteGV + "/widgets"
	for _, tt := range []struct {
		name, proto, path string
		as                string // the impersonated user
		unhealthy         bool
		want              string // prefix of the body
		remote            int    // requests at the backend
	}{
		{name: "forwarded", proto: "http/1.1", path: widgets, want: "far", remote: 1},
		{name: "forwarded", proto: "h2", path: widgets, want: "far", remote: 1},
		{name: "forwarded as somebody else", proto: "http/1.1", path: widgets, as: "jane", want: "far", remote: 1},
		{name: "forwarded as somebody else", proto: "h2", path: widgets, as: "jane", want: "far", remote: 1},
		{name: "refused", proto: "http/1.1", path: widgets, unhealthy: true, want: `{"kind":"Status"`},
		{name: "document", proto: "http/1.1", path: "/apis/remote.example.com", want: "document"},
		{name: "document as somebody else", proto: "http/1.1", path: "/apis/remote.example.com", as: "jane", want: "document"},
	} {
		t.Run(tt.name+" over "+tt.proto, func(t *testing.T) {
			says := func(text string) http.HandlerFunc {
				return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
			}
			var w *world
			var armed atomic.Bool
			w = newWorld(t, worldConfig{
				remote: says("far"), local: says("local"), documents: says("document"), unhealthy: tt.unhealthy,
				reviewed: func() {
					if armed.Load() {
						w.current.Store(registry.Build(registry.Input{Complete: true}, nil))
					}
				},
			})
			w.get(t, tt.proto, widgets) // as bob; Fairlead learns the backend's protocol
			before := w.remote.count()
			armed.Store(true)
			r := w.as(t, "boss", "GET", tt.path, nil)
			if tt.as != "" {
				r.Header.Set("Impersonate-User", tt.as)
			}
			got := w.do(t, w.httpClient(t, tt.proto, nil), r)
			if !strings.HasPrefix(got.body, tt.want) || w.remote.count()-before != tt.remote {
				t.Errorf("%d %s, and the backend got %d requests", got.status, got.body, w.remote.count()-before)
			}
		})
	}
}
