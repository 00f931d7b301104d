package scene

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// routes are what the policy says.
type routes map[string]*policy.Route // :: APIService

// Route sets what the policy says of an APIService: that it is hidden, or its further backends.
// A name that ends in ! is a standby, and of one that ends in ? there is no Service.
func (s *Scene) Route(name string, services ...string) {
	s.Helper()
	r := policy.Route{APIService: name, Hidden: slices.Equal(services, []string{"hidden"})}
	if s.routes[name] = &r; len(services) == 0 {
		delete(s.routes, name)
	}
	for _, service := range services {
		if r.Hidden {
			break
		}
		service, standby := strings.CutSuffix(service, "!")
		service, absent := strings.CutSuffix(service, "?")
		b := policy.Backend{Service: &apiregistrationv1.ServiceReference{Namespace: "x", Name: service}, InsecureSkipTLSVerify: true, Standby: standby}
		if !absent {
			s.serve(types.NamespacedName{Namespace: "x", Name: service})
		}
		if !standby {
			b.When = &policy.When{Names: []string{service + "-*"}}
		}
		r.Backends = append(r.Backends, b)
	}
	p := &policy.Policy{TypeMeta: metav1.TypeMeta{APIVersion: "fairlead.dev/v1", Kind: "Policy"}, ObjectMeta: metav1.ObjectMeta{Name: "scene"}}
	for _, r := range s.routes {
		p.Routes = append(p.Routes, *r)
	}
	text, err := json.Marshal(p)
	if err != nil {
		s.Fatal(err)
	}
	SetPolicy(s, &s.Input, "policy", string(text))
	s.Build()
}

// SetPolicy sets the policy of a file with this text.
func SetPolicy(tb testing.TB, in *registry.Input, file, text string) {
	tb.Helper()
	objects, faults := directory.Decode(file, []byte(text))
	wrong, unknown := in.SetPolicy(objects)
	for _, f := range slices.Concat(faults, wrong, unknown) {
		tb.Fatal(f)
	}
}
