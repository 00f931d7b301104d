//go:build e2e

package entrypoint

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

const (
	zoned   = "zoned.example.com/v1"
	widgets = "/apis/" + zoned + "/namespaces/default/widgets/widget-001"
)

// place is an extension server of a zone. The letter of its zone begins its name.
type place struct {
	*extension.Server
	name string
	got  atomic.Int64 // requests for widgets
}

// zones runs two extension servers in each of the zones a and b, with the hints of an EndpointSlice controller.
func (w *world) zones(t *testing.T) (all []*place) {
	t.Helper()
	ca := pki.NewCA("extension-ca")
	cert, _ := must.Get2(ca.WriteFiles(w.Dir(), "extension-ca"))(t)
	var addresses []string
	for i, name := range []string{"a1", "a2", "b1", "b2"} {
		p := &place{name: name}
		addresses = append(addresses, fmt.Sprintf("10.79.1.%d", i+1))
		p.Server = extension.Start(t, extension.Config{
			Address: addresses[i] + ":8443", GroupVersions: []string{zoned}, Names: []string{"zoned.zones.svc"}, CA: ca, Record: -1,
			Wrap: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if strings.HasPrefix(r.URL.Path, widgets) {
						p.got.Add(1)
					}
					next.ServeHTTP(rw, r)
				})
			},
		})
		all = append(all, p)
	}
	must.Do(t, w.Register(t.Context(), cluster.Backend{Namespace: "zones", Service: "zoned", Port: 8443, CAFile: cert, GroupVersions: []string{zoned}, Addresses: addresses}))
	list := w.core.DiscoveryV1().EndpointSlices("zones")
	s := must.Get(list.Get(t.Context(), "zoned", metav1.GetOptions{}))(t)
	for i := range s.Endpoints {
		s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: all[i].name[:1]}}}
	}
	must.Get(list.Update(t.Context(), s, metav1.UpdateOptions{}))(t)
	return all
}

// Requests stay in the zone of a replica while that has a healthy endpoint, and clients of kube-proxy in theirs.
func TestZones(t *testing.T) {
	w := newWorld(t)
	all := w.zones(t)
	a, b := w.start(t, "a", "10.79.0.1", "--zone=a"), w.start(t, "b", "10.79.0.2", "--zone=b")
	w.publishes(t, 5*time.Second, "10.79.0.1:8443", "10.79.0.2:8443")
	soon := func(what string, ok func() (bool, string)) time.Duration {
		return suite.Eventually(t, 30*time.Second, what, ok)
	}
	plain := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: "plain", Address: "10.79.0.4", Port: port, Args: []string{"--kubeconfig=" + w.kubeconfig}}))(t)
	doors := map[string]cluster.Endpoint{"plain": plain.Endpoint, "zone a": a.Endpoint, "zone b": b.Endpoint}
	for name, door := range doors {
		soon(name+" serves it", func() (bool, string) {
			err := ask.Serves(t.Context(), suite.Client(t, door, w.Admin()), door.URL+widgets)
			return err == nil, fmt.Sprint(err)
		})
	}
	var status answer.Status
	must.Do(t, json.Unmarshal([]byte(must.Get(ask.Get(t.Context(), suite.Client(t, a.Admin, w.Admin()), a.Admin.URL+"/fairlead/status"))(t)), &status))
	far := ""
	for _, s := range status.APIServices {
		for _, e := range s.Endpoints {
			if e.Far {
				far += " " + e.Address
			}
		}
	}
	check.Same(t, " 10.79.1.3:8443 10.79.1.4:8443", far, "far from zone a")

	// during sends requests through a door while do runs, and returns how many each server got, and how many failed.
	during := func(door string, do func()) (got map[string]int64, failed int, shots []volley.Shot) {
		before := map[string]int64{}
		for _, p := range all {
			before[p.name] = p.got.Load()
		}
		l := &volley.Load{Every: 20 * time.Millisecond, Make: func(int) (string, string, string) { return http.MethodGet, doors[door].URL + widgets, "" }}
		for range 8 {
			l.Clients = append(l.Clients, suite.Client(t, doors[door], w.Admin()))
		}
		l.Start(t)
		do()
		shots, got = l.Stop(), map[string]int64{}
		for _, p := range all {
			got[p.name] = p.got.Load() - before[p.name]
		}
		bad := slices.DeleteFunc(slices.Clone(shots), func(s volley.Shot) bool { return !s.Failed() })
		if failed = len(bad); failed > 0 {
			t.Log(&bad[0])
		}
		t.Logf("%s: %d requests, %v, %d failed", door, len(shots), got, failed)
		return got, failed, shots
	}
	steady := func() { suite.Pause(t, 4*time.Second) }
	for name := range doors {
		got, failed, _ := during(name, steady)
		switch {
		case failed > 0:
			t.Errorf("%s: %d failed", name, failed)
		case name == "zone a" && got["b1"]+got["b2"] > 0, name == "zone b" && got["a1"]+got["a2"] > 0:
			t.Errorf("%s: requests left the zone: %v", name, got)
		}
	}
	for _, how := range []extension.Kind{extension.Dead, extension.Freeze} {
		for _, name := range []string{"zone a", "plain"} {
			t.Run(string(how)+" "+name, func(t *testing.T) {
				got, failed, shots := during(name, func() {
					suite.Pause(t, time.Second)
					must.Do(t, all[0].Set(extension.Fault{Kind: how}))
					must.Do(t, all[1].Set(extension.Fault{Kind: how}))
					steady()
					if how == extension.Freeze {
						steady() // a silent connection is found in 5 s
					}
					must.Do(t, all[0].Set())
					must.Do(t, all[1].Set())
					if name != "zone a" {
						steady()
						return
					}
					back := soon("back in the zone", func() (bool, string) {
						before := all[2].got.Load() + all[3].got.Load()
						suite.Pause(t, 100*time.Millisecond) // some 25 requests
						left := all[2].got.Load() + all[3].got.Load() - before
						return left == 0, fmt.Sprint(left, " left")
					})
					t.Logf("back in the zone after %s", back)
				})
				volley.Judge(t, shots, 0, (*volley.Shot).Failed)
				check.Same(t, true, got["b1"]+got["b2"] != 0, "the other zone did not help: %v, %d failed", got, failed)
			})
		}
	}
	t.Run("published", func(t *testing.T) {
		zones := func() string {
			s := must.Get(w.core.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
			var all []string
			for _, e := range s.Endpoints {
				if e.Zone != nil {
					all = append(all, fmt.Sprint(e.Addresses[0], " ", *e.Zone, " ", e.Hints.ForZones[0].Name))
				}
			}
			return strings.Join(all, ", ")
		}
		const both = "10.79.0.1 a a, 10.79.0.2 b b"
		check.Same(t, both, zones(), "zones")
		c := w.start(t, "c", "10.79.0.3")
		soon("no zones", func() (bool, string) { return zones() == "", zones() })
		c.Part.Kill()
		soon("zones", func() (bool, string) { return zones() == both, zones() })
		for _, f := range []*cluster.Front{a, b} {
			check.Same(t, 0, w.scrape(t, f)["fairlead_entrypoint_foreign_writes_total"], "foreign writes")
		}
	})
}
