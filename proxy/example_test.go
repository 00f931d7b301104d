package proxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// A Proxy of one APIService whose Service does not exist: first who it is, then whether they may, then where it goes.
func ExampleNew() {
	tides := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.tides.example.com"}}
	tides.Spec = apiregistrationv1.APIServiceSpec{
		Group: "tides.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 15,
		Service: &apiregistrationv1.ServiceReference{Namespace: "sea", Name: "tides"}, InsecureSkipTLSVerify: true,
	}
	objects := map[string]*apiregistrationv1.APIService{tides.Name: tides}
	table := registry.Build(registry.Input{APIServices: objects, Complete: true}, nil)
	tables := scene.TableFunc(func() *registry.Table { return table }) // a *registry.Registry in a process

	callers, err := authn.New(authn.Config{Review: func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: token}}, token != "", nil
	}})
	fmt.Println(err)
	rights, err := authz.New(authz.Config{Review: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "jane" {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionDeny, "", nil
	}})
	fmt.Println(err)
	backends := backend.New(backend.Config{
		Tables: tables, Dial: new(net.Dialer).DialContext,
		TLS: func(string, *registry.Backend) (*tls.Config, error) {
			return &tls.Config{MinVersion: tls.VersionTLS12}, nil
		},
		Guard:           func(string, *registry.Backend, []*x509.Certificate) (<-chan struct{}, func()) { return nil, func() {} },
		IdentityChanged: func() <-chan struct{} { return nil },
		Signal:          func(string, string, error) {}, Observe: func(string, string, time.Duration) {},
	})
	p, err := proxy.New(proxy.Config{Tables: tables, Authn: callers, Authz: rights, Backends: backends})
	fmt.Println(err)

	for _, token := range []string{"", "joe", "jane"} {
		r := httptest.NewRequest(http.MethodGet, "/apis/tides.example.com/v1/gauges", nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		_, message, _ := strings.Cut(w.Body.String(), `"message":"`)
		message, _, _ = strings.Cut(message, `"`)
		fmt.Println(w.Code, message)
	}
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// 401 Unauthorized
	// 403 gauges.tides.example.com is forbidden: User \
	// 503 v1.tides.example.com is unavailable: ServiceNotFound
}
