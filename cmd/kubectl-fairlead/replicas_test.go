package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// endpoints is an EndpointSlice with the addresses of urls.
func endpoints(t *testing.T, urls ...string) discoveryv1.EndpointSlice {
	t.Helper()
	s := discoveryv1.EndpointSlice{}
	for _, u := range urls {
		at := must.Get(url.Parse(u))(t)
		port := must.Get(strconv.Atoi(at.Port()))(t)
		s.Ports = []discoveryv1.EndpointPort{{Port: new(int32(port))}}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{at.Hostname()}})
	}
	return s
}

// Every replica is asked with the caller's credential; differences are shown per replica.
func TestReplicas(t *testing.T) {
	well, ill := sample(), broken()
	well.Replica, ill.Replica, ill.Ready = "node-1", "node-2", "table: not complete"
	ill.APIServices = ill.APIServices[:1]
	f, other := newFront(t, well), newFront(t, ill)
	closed := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	gone := "https://" + closed.Addr().String()
	_ = closed.Close()
	list := discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{endpoints(t, f.URL), endpoints(t, other.URL), endpoints(t, gone)}}
	f.slices = &list
	out, err := f.run(t, "status", "--replicas", "--as", "bob")
	if !errors.Is(err, errUnavailable) {
		t.Errorf("error %v, want errUnavailable", err)
	}
	at := func(u string) string { return strings.TrimPrefix(u, "https://") }
	says(t, out,
		"node-1    "+at(f.URL)+"   True ", "   1/1", "node-2    "+at(other.URL)+"   False ", "   0/1", at(gone)+"   Unknown ", at(gone)+": asking /fairlead/status: ",
		at(other.URL)+" is not ready: table: not complete\n",
		"v1beta1.metrics.k8s.io is False FailedDiscoveryCheck at "+at(other.URL)+"; True Passed at "+at(f.URL)+"\n", "v1.apps is True Local at "+at(f.URL)+"; unknown to 1\n",
	)
	if f.as != "bob" || other.as != "bob" {
		t.Errorf("asked as %q and %q, want bob", f.as, other.as)
	}
	list.Items = list.Items[:1]
	if out, err := f.run(t, "status", "--replicas"); err != nil || strings.Count(out, "\n") != 2 {
		t.Errorf("a healthy replica: %v\n%s", err, out)
	}
	list.Items = nil
	if _, err := f.run(t, "status", "--replicas"); err == nil || !strings.Contains(err.Error(), "has no endpoints") {
		t.Errorf("none: %v", err)
	}
	if _, err := f.run(t, "status", "--replicas", "-o", "json"); !cli.IsUsage(err) {
		t.Errorf("another output format: %v", err)
	}
}

// An address in two slices, while one replaces the other, is one replica. Only the port named admin
// counts.
func TestReplicaAddresses(t *testing.T) {
	slice := func(ports ...discoveryv1.EndpointPort) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{Ports: ports, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.2"}}, {Addresses: []string{"10.0.0.1"}}}}
	}
	admin, https := discoveryv1.EndpointPort{Name: new("admin"), Port: new(int32(6444))}, discoveryv1.EndpointPort{Name: new("https"), Port: new(int32(6443))}
	all := addresses(&discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{slice(https, admin), slice(admin)}})
	if len(all) != 2 || all[0].address != "10.0.0.1:6444" || all[1].address != "10.0.0.2:6444" {
		t.Errorf("replicas at %+v", all)
	}
}

// A replica that does not prove the kubeconfig's server name gets no request and no credential.
func TestReplicaOfAnother(t *testing.T) {
	f := newFront(t, sample())
	var asked atomic.Int64
	stranger := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	pair := pki.NewCA("another").Issue(pki.Leaf{CommonName: "fairlead", Names: []string{"127.0.0.1"}})
	certificate := must.Get(tls.X509KeyPair(pair.CertPEM(), pair.KeyPEM()))(t)
	stranger.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	stranger.StartTLS()
	t.Cleanup(stranger.Close)
	f.slices = &discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{endpoints(t, stranger.URL)}}
	out, err := f.run(t, "status", "--replicas", "--token", "secret")
	if !errors.Is(err, errUnavailable) || !strings.Contains(out, "certificate") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := f.run(t, "status", "--replicas", "--token", "secret", "--insecure-skip-tls-verify"); err == nil || !strings.Contains(err.Error(), "verifies no server certificate") {
		t.Errorf("without verification: %v", err)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("it was asked %d times", n)
	}
}

func (f *front) serveSlices(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("labelSelector") != "kubernetes.io/service-name=fairlead-admin" {
		http.Error(w, "of what?", http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(f.slices)
}
