package pages

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// newDoor makes a proxy over a table. alice may do everything, bob may see widgets and pages, and nobody else anything.
func newDoor(t *testing.T, tables *registry.Registry) (*proxy.Proxy, *backend.Pools) {
	t.Helper()
	pools := backend.New(backend.Config{
		Tables: tables, Dial: new(net.Dialer).DialContext, TLS: func(string, *registry.Backend) (*tls.Config, error) { return nil, errors.New("nobody dials here") },
		Signal: func(string, string, error) {}, Observe: func(string, string, time.Duration) {}, IdentityChanged: func() <-chan struct{} { return nil },
		Guard: func(string, *registry.Backend, []*x509.Certificate) (<-chan struct{}, func()) { return nil, func() {} },
	})
	who := must.Get(authn.New(authn.Config{}))(t)
	may := must.Get(authz.New(authz.Config{Review: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		u := a.GetUser()
		sees := u.GetName() == "bob" && (a.GetResource() == "widgets" || !a.IsResourceRequest())
		if u.GetName() == "alice" || sees || slices.Contains(u.GetGroups(), "system:serviceaccounts:good") {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "no rule allows it", nil
	}}))(t)
	return must.Get(proxy.New(proxy.Config{Tables: tables, Authn: who, Authz: may, Backends: pools}))(t), pools
}
