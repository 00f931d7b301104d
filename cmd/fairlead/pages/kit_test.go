package pages

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/manifests"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

const refused = "failing or missing response from https://127.0.0.7:8443/apis/bad.example.com/v1: bad status from https://127.0.0.7:8443/apis/bad.example.com/v1: 403"

// stand is Pages over a real registry and a real proxy.
type stand struct {
	*Pages
	dir      string
	registry *registry.Registry
	draining atomic.Bool
}

// newDoor makes a proxy over a table. alice may do everything, bob may see widgets and pages, and
// nobody else anything.
func newDoor(t *testing.T, table func() *registry.Table) (*proxy.Proxy, *backend.Pools) {
	t.Helper()
	pools := must.Get(backend.New(backend.Config{
		Table: table, Dial: new(net.Dialer).DialContext, TLS: func(string, *registry.Backend) (*tls.Config, error) { return nil, errors.New("nobody dials here") },
	}))(t)
	who := must.Get(authn.New(authn.Config{}))(t)
	may := must.Get(authz.New(authz.Config{Review: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		u := a.GetUser()
		sees := u.GetName() == "bob" && (a.GetResource() == "widgets" || !a.IsResourceRequest())
		if u.GetName() == "alice" || sees || slices.Contains(u.GetGroups(), "system:serviceaccounts:good") {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "no rule allows it", nil
	}}))(t)
	return must.Get(proxy.New(proxy.Config{Table: table, Authn: who, Authz: may, Backends: pools}))(t), pools
}

// newStand has an APIService that is good, one whose endpoint is bad, one whose Service is lost, and
// one that is closed for maintenance.
func newStand(t *testing.T) *stand {
	t.Helper()
	s := &stand{dir: t.TempDir()}
	for group, annotations := range map[string]string{"good": "", "bad": "", "closed": `fairlead.dev/maintenance: "back <b>at nine</b>"`} {
		s.write(t, group, annotations)
	}
	apiService, _, _ := strings.Cut(manifests.Remote("lost.example.com", "", ""), "---")
	must.Do(t, os.WriteFile(filepath.Join(s.dir, "lost.yaml"), []byte(strings.Replace(apiService, "groupPriorityMinimum: 100", "groupPriorityMinimum: 200", 1)), 0o600))
	s.registry = must.Get(registry.New(registry.Config{Directory: s.dir}))(t)
	door, pools := newDoor(t, s.registry.Table)
	s.Pages = must.Get(New(s.sources(door, pools)))(t)
	must.Run(t, s.registry.Run)
	must.Run(t, s.Run)
	s.await(t, 4, true)
	for _, e := range s.registry.Table().Entries() { // as a prober would
		if len(e.Endpoints) > 0 {
			report := registry.Report{Name: e.Name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: registry.Healthy}
			if e.Name == "v1.bad.example.com" {
				report.Health, report.Reason, report.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, refused
			}
			s.registry.Report(report)
		}
	}
	s.await(t, 4, false)
	return s
}

// write writes the manifests of an APIService with one endpoint, at once.
func (s *stand) write(t *testing.T, name, annotations string) {
	t.Helper()
	temporary := filepath.Join(s.dir, "."+name)
	must.Do(t, os.WriteFile(temporary, []byte(manifests.Remote(name+".example.com", "127.0.0.7", annotations)), 0o600))
	must.Do(t, os.Rename(temporary, filepath.Join(s.dir, name+".yaml")))
}

// await waits until a number of APIServices of extension servers is in the table, each with a
// verdict unless some may be unprobed.
func (s *stand) await(t *testing.T, n int, unprobed bool) {
	t.Helper()
	must.Soon(t, 10*time.Second, "the expected table", func() bool {
		found := 0
		for _, e := range s.registry.Table().Entries() {
			if !e.Local() && (unprobed || e.Verdict.Status != "") {
				found++
			}
		}
		return found == n && s.registry.Table().Complete()
	})
}

// get requests a page as alice, or as another user.
func (s *stand) get(t *testing.T, path string, as ...string) (*httptest.ResponseRecorder, string) {
	t.Helper()
	u := &user.DefaultInfo{Name: append(as, "alice")[0], UID: "7", Groups: []string{"people"}}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(request.WithUser(t.Context(), u), http.MethodGet, path, nil))
	return w, w.Body.String()
}

// says checks that a text contains wants.
func says(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}
