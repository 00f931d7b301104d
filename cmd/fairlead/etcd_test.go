package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/apiservices"
	"github.com/fairlead-proxy/fairlead/registry/apiservices/etcd"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestEtcdConfig(t *testing.T) {
	o := &options{}
	must.Do(t, flagSet(o).Parse(strings.Fields("--registry=etcd:https://a:2379,https://b:2379 --etcd-cafile=ca --etcd-certfile=cert --etcd-keyfile=key --etcd-prefix=/p")))
	o.registry = must.Get(parseSources(o.registryFlag))(t)
	o.validateEtcd(&cli.Faults{})
	want := etcd.Config{Endpoints: []string{"https://a:2379", "https://b:2379"}, CAFile: "ca", CertFile: "cert", KeyFile: "key", Prefix: "/p"}
	check.Same(t, want, o.etcd, "configuration")
}

// This process can watch its own table even when other users hold all places for watches. The head
// of a watch without events arrives at once, and closing its body ends it.
func TestOwnClientIsNeverRefused(t *testing.T) {
	server := must.Get(apiservices.New(apiservices.Config{
		Etcd: &etcd.Config{Endpoints: testserver.RunEtcd(t, nil).Endpoints()}, Options: &registry.Options{},
	}))(t)
	must.Run(t, server.Run)
	last := io.NopCloser(strings.NewReader(""))
	as := transportTo(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: r.Header.Get("User")})))
	}))
	watch := func(name string) int {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+inProcess+"/apis/apiregistration.k8s.io/v1/apiservices?watch=1", nil))(t)
		r.Header.Set("User", name)
		res := must.Get(as.RoundTrip(r))(t)
		if res.StatusCode != http.StatusOK {
			_ = res.Body.Close()
		} else {
			last = res.Body
		}
		return res.StatusCode // the other watches end with ctx
	}
	must.Soon(t, time.Minute, "the cache is ready", func() bool { return watch("first") == http.StatusOK })
	n, refused := 0, 0
	for refused < 10 { // one user after another, until no place is free
		n++
		for name := fmt.Sprint(n); watch(name) == http.StatusOK; refused = 0 {
		}
		refused++
	}
	own := must.Get(apiregistrationv1.NewForConfig(ownClient(server)))(t)
	must.Get(own.APIServices().Watch(t.Context(), metav1.ListOptions{}))(t).Stop()
	_ = last.Close()
	must.Soon(t, 20*time.Second, "the place of an ended watch", func() bool { return watch("another") == http.StatusOK })
}

// A handler that writes nothing answers, too.
func TestNothingIsWritten(t *testing.T) {
	to := transportTo(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	res := must.Get(to.RoundTrip(must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+inProcess, nil))(t)))(t)
	check.Same(t, http.StatusOK, res.StatusCode, "status")
	must.Do(t, res.Body.Close())
}
