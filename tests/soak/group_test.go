//go:build e2e

package soak

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

type group struct {
	name     string
	version  string
	services [2]*service

	// The fields below are what the cluster has been given, or is being given right now. world.mu
	// guards them.
	exists      bool // the APIService
	current     int  // the Service that it points to
	priority    int32
	maintenance bool
	bundle      []*pki.CA
	ca          *pki.CA // signs the sites' certificates
	rotations   int
}

type service struct {
	name  string
	sites []*site
}

func (g *group) apiService() string { return g.version + "." + g.name }

// scope is the scope of requests that depend on the group's backends.
func (g *group) scope() string { return "group:" + g.name }

func (g *group) widgets() string {
	return "/apis/" + g.name + "/" + g.version + "/namespaces/" + namespace + "/widgets"
}

func (g *group) sites() []*site { return slices.Concat(g.services[0].sites, g.services[1].sites) }

func (w *world) raiseGroup(ctx context.Context, number int, name string) *group {
	g := &group{name: name + ".soak.example.com", version: "v1", priority: 1000, ca: pki.NewCA(name + "-ca-0")}
	g.bundle = []*pki.CA{g.ca}
	for i := range g.services {
		s := &service{name: name + "-" + strconv.Itoa(i)}
		g.services[i] = s
		for n := range 3 {
			s.sites = append(s.sites, w.newSite(g, s, fmt.Sprintf("10.79.%d.%d", 1+number, 10*(i+1)+n)))
		}
		w.createService(ctx, s)
	}
	must.Do(w.t, w.change(ctx, g, func() { g.exists = true }, w.createAPIService))
	return g
}

// createService makes a headless Service: kube-apiserver's own aggregator cannot dial it, so all
// that sites receive comes through a door.
func (w *world) createService(ctx context.Context, s *service) {
	core := w.kube[0].core
	meta := metav1.ObjectMeta{Name: s.name, Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: s.name}}
	must.Get(core.CoreV1().Services(namespace).Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "https", Port: 443}},
	}}, metav1.CreateOptions{}))(w.t)
	must.Get(core.DiscoveryV1().EndpointSlices(namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints(s.sites),
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(sitePort))}},
	}, metav1.CreateOptions{}))(w.t)
}

func endpoints(sites []*site) []discoveryv1.Endpoint {
	list := []discoveryv1.Endpoint{}
	for _, x := range sites {
		if x.listed {
			list = append(list, discoveryv1.Endpoint{Addresses: []string{x.ip}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
		}
	}
	return list
}

func (w *world) createAPIService(ctx context.Context, g *group) error {
	w.mu.Lock()
	object := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: g.apiService()},
		Spec: apiregistrationv1.APIServiceSpec{
			Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: g.services[g.current].name, Port: new(int32(443))},
			Group:   g.name, Version: g.version, CABundle: pki.Bundle(g.bundle...), GroupPriorityMinimum: g.priority, VersionPriority: 15,
		},
	}
	w.mu.Unlock()
	return w.api(ctx, func(ctx context.Context, k clients) error {
		_, err := k.groups.ApiregistrationV1().APIServices().Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an earlier attempt has created it
			return nil
		}
		return err
	})
}
