package registry

import (
	"bytes"
	"cmp"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// An owner's Backend is private exactly as long as its overlap lasts, even if nothing else changes.
func TestOwnedForTheOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to := scripted(t)
		add := func(group, bundle string) {
			a := remoteService(group, "v1", "server")
			a.Spec.InsecureSkipTLSVerify, a.Spec.CABundle = false, []byte(bundle)
			if group == "0.example.com" { // the first to start, and the last to end
				a.Annotations = map[string]string{prefix + "ca-rotation-overlap": "9m"}
			}
			put(to, a)
		}
		add("0.example.com", "old")
		add("a.example.com", "old")
		add("b.example.com", "new")
		time.Sleep(time.Second)
		add("0.example.com", "new")
		add("a.example.com", "new")
		time.Sleep(time.Minute - time.Second)
		synctest.Wait()
		during := r.Table()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		after := r.Table()
		for i, table := range []*Table{during, after} { // which may be one, if nothing ends
			owner := []string{"v1.a.example.com", ""}[i]
			a, b := table.named("v1.a.example.com").Backend, table.named("v1.b.example.com").Backend
			check.Same(t, true, (a == b) == (owner == "") && a.Owner == owner, "its owner is %q, want %q: %+v, its neighbour's %+v", a.Owner, owner, a, b)
		}
		check.Same(t, true, after.Generation() <= during.Generation()+1, "%d tables for one end", after.Generation()-during.Generation())
		check.Same(t, 8*time.Minute, time.Until(after.rebuildAt).Round(time.Minute), "time until the next rebuild")
	})
}

// A Local APIService whose new server fails its first probes has become unavailable, as upstream counts.
func TestOutageOfAFormerLocal(t *testing.T) {
	in := manyRemotes(1)
	name, remote := "v1.group0.example.com", in.APIServices["v1.group0.example.com"]
	in.APIServices[name] = remoteService("group0.example.com", "v1", "")
	local := Build(in, nil)
	in.APIServices[name] = remote
	unprobed := Build(in, local)
	e := unprobed.named(name)
	for _, at := range e.Endpoints {
		in.Reports = append(in.Reports, Report{Name: name, Backend: e.Backend, Endpoint: Endpoint{Address: at.Address, Health: Unhealthy}})
	}
	for table, want := range map[*Table]uint64{local: 0, unprobed: 0, Build(in, unprobed): 1} {
		failed := table.named(name).outages[slices.Index(unavailableReasons[:], ReasonFailedDiscoveryCheck)]
		check.Same(t, want, failed, "outages with verdict %q", table.named(name).Verdict.Reason)
	}
}

// Another CA or TLS name does not make it another server.
func TestSameService(t *testing.T) {
	was := Backend{Namespace: "x", Service: "a", Port: 443, ServerName: "a"}
	for now, want := range map[Backend]bool{
		{Namespace: "x", Service: "a", Port: 443, CABundle: "other"}: true, {Namespace: "x", Service: "a", Port: 444}: false,
		{Namespace: "y", Service: "a", Port: 443}: false, {Namespace: "x", Service: "b", Port: 443}: false,
	} {
		check.Same(t, want, was.SameService(&now), "%+v", now)
	}
}

// The five bundles about which registry and trust disagreed when each had a parser. A block with
// headers is no certificate, as for client-go, which crypto/x509 decides.
func TestBundles(t *testing.T) {
	ca, other := pki.NewCA("ca").PEM(), pki.NewCA("other").PEM()
	headed := bytes.Replace(ca, []byte("CERTIFICATE-----\n"), []byte("CERTIFICATE-----\nProc-Type: 4\n\n"), 1)
	key := pki.NewCA("ca").Issue(pki.Leaf{}).KeyPEM()
	const cut = "reading bundle: 1 of 2 certificates are broken or cut short"
	uri := "%zz" + strings.Repeat("a", 997) // 1,000 bytes: as a URI it has a bad escape
	long := pki.NewCA("ca").Issue(pki.Leaf{Names: []string{uri}}).Certificate.Raw
	long = bytes.Replace(long, []byte("\x82\x82\x03\xe8%zz"), []byte("\x86\x82\x03\xe8%zz"), 1)
	odd := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: long})
	quoted := fmt.Sprintf("parsing certificate 2: %.300s", fmt.Sprintf("x509: cannot parse URI %q", uri))
	for name, tc := range map[string]struct {
		pem     []byte
		certs   int
		warning string
	}{
		"whole":              {ca, 1, ""},
		"headers":            {headed, 0, ""},
		"headers, and whole": {slices.Concat(headed, ca), 1, cut},
		"above 1 MiB":        {slices.Concat(bytes.Repeat([]byte("\n"), bundle.Max), ca), 0, ""},
		"one and a half":     {slices.Concat(ca, other[:len(other)/2]), 1, cut},
		"with a key":         {slices.Concat(ca, key), 1, ""},
		"one commented out":  {slices.Concat([]byte("# "), bytes.ReplaceAll(other, []byte("\n"), []byte("\n# ")), []byte("\n"), ca), 1, ""},
		"without a space":    {slices.Concat(ca, []byte("#"), bytes.ReplaceAll(other, []byte("\n"), []byte("\n#"))), 1, ""},
		"a hundred URIs":     {pki.NewCA("ca").Issue(pki.Leaf{URIs: bundle.MaxURIs}).CertPEM(), 1, ""},
		"one more URI":       {pki.NewCA("ca").Issue(pki.Leaf{URIs: bundle.MaxURIs + 1}).CertPEM(), 0, ""},
		"a long RSA key":     {pki.NewCA("ca").RSA(16 << 10), 1, ""},
		"one more bit":       {pki.NewCA("ca").RSA(16<<10 + 1), 0, ""},
		"a bad URI":          {slices.Concat(ca, odd), 1, quoted},
		"another type":       {bytes.ReplaceAll(ca, []byte("CERTIFICATE"), []byte("PUBLIC KEY")), 0, ""},
	} {
		b := make(bundles).parse(tc.pem)
		certs, err := bundle.Parse(tc.pem) // as trust does
		warning, rest := strings.CutSuffix(b.problem, "; the rest is used")
		check.Same(t, false, len(certs) != tc.certs || rest != (tc.warning != "") || rest && warning != tc.warning || b.unusable != (tc.certs == 0) || (b.problem == "") != (err == nil) || (err == nil) != (tc.certs > 0 && tc.warning == ""), "%s: %d certificates, %v; problem %q, unusable: %v", name, len(certs), err, b.problem, b.unusable)
	}
}

// TestBehind builds APIServices that the cluster's aggregator sends to Fairlead.
func TestBehind(t *testing.T) {
	own := types.NamespacedName{Namespace: "kube-system", Name: "fairlead"}
	ca := string(pki.NewCA("real").PEM())
	to := func(service string, more ...string) map[string]string {
		all := map[string]string{behind.Service: service}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	const (
		server   = "extensions/server-0:443"
		fairlead = "kube-system/fairlead:443"
		sent     = server + " for " + fairlead
		spec     = server + " for " + server
		noAccess = ", " + ReasonServiceAccessError
	)
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		service     string                            // of the spec, in namespace extensions; empty: Fairlead's
		cluster     apiregistrationv1.ConditionStatus // what its own aggregator says
		want        string                            // backend, the cluster's, whom it trusts, reason and what the cluster says
		problem     string
	}{
		{"adopted", to(server, behind.Bundle, ca), "", "", sent + ", the CA", ""},
		{"before its spec", to(server, behind.Insecure, "true"), "server-0", "", spec + ", anybody", "which is not Fairlead's"},
		{"put back by its chart, with another CA", to(server, behind.Bundle, ca), "server-0", "", spec + ", anybody", "which is not Fairlead's"},
		{"not adopted", nil, "server-0", "", server + " for , anybody", ""},
		{"the system's CAs", to(server), "", "", sent + ", the system's", ""},
		{"a bundle wins", to(server, behind.Insecure, "true", behind.Bundle, ca), "", "", sent + ", the CA", ""},
		{"no certificate trusts nobody", to(server, behind.Bundle, "!!"), "", "", sent + ", !!, " + ReasonInvalidCABundle, ""},
		{"ca-from in the real namespace", to(server, prefix+"ca-from", "ca/ca.crt"), "", "", sent + ", the system's", ""},
		{"nobody said where", nil, "", "", fairlead + " for , anybody" + noAccess, ""},
		{"a loop", to(fairlead), "", "", fairlead + " for " + fairlead + ", anybody" + noAccess, ""},
		{"not a Service", to("server-0"), "", "", fairlead + " for , anybody" + noAccess, "is not <namespace>/<service>:<port>"},
		{"a URL", map[string]string{prefix + "url": "https://10.0.0.9"}, "", "", "https://10.0.0.9:443 for " + fairlead + ", anybody", ""},
		{
			"a URL, and the cluster does not reach Fairlead", map[string]string{prefix + "url": "https://10.0.0.9"}, "", "False",
			"https://10.0.0.9:443 for " + fairlead + ", anybody, False, Reason: message", "and its own condition says: False, Reason: message",
		},
		{"another's service", to(server), "server-1", "", server + " for extensions/server-1:443, the system's", "which is not Fairlead's"},
		{"the cluster's own apiserver", to("default/kubernetes:443"), "", "", fairlead + " for , anybody" + noAccess, "of an extension server"},
		{"the cluster agrees", to(server), "", "True", sent + ", the system's, True, Reason: message", ""},
		{
			"the cluster does not reach Fairlead", to(server), "", "False", sent + ", the system's, False, Reason: message",
			"the cluster sends it to service kube-system/fairlead:443, and its own condition says: False, Reason: message",
		},
		{
			"nobody is behind", to("extensions/none:443"), "", "False",
			"extensions/none:443 for " + fairlead + ", the system's, " + ReasonServiceNotFound + ", False, Reason: message", "",
		},
		{"a name of Kubernetes 1.36", to("extensions/3scale:443"), "", "", "extensions/3scale:443 for " + fairlead + ", the system's, " + ReasonServiceNotFound, ""},
		{"not sent here", nil, "server-0", "False", server + " for , anybody", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := manyRemotes(2)
			in.Options = &Options{Front: own, AllowURLs: true}
			a := remoteService("behind.example.com", "v1", "server-0")
			a.ObjectMeta = metav1.ObjectMeta{Name: a.Name, Annotations: tt.annotations}
			if a.Spec.Service.Name = tt.service; tt.service == "" {
				a.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: own.Namespace, Name: own.Name}
			}
			if tt.cluster != "" {
				a.Status.Conditions = []apiregistrationv1.APIServiceCondition{
					{Type: apiregistrationv1.Available, Status: tt.cluster, Reason: "Reason", Message: "10.0.0.1:34567->message"}, // its own port is news each time
				}
			}
			strip(a)
			in.APIServices[a.Name] = a
			table := Build(in, nil)
			e := table.named(a.Name)
			got := fmt.Sprintf("%s for %s, ", e.Backend, e.Front)
			switch b := e.Backend; {
			case b.Insecure && b.CABundle == "":
				got += "anybody"
			case !b.Insecure:
				got += cmp.Or(strings.ReplaceAll(b.CABundle, ca, "the CA"), "the system's")
			}
			for _, text := range []string{e.Verdict.Reason, e.FrontSays} {
				if text != "" {
					got += ", " + text
				}
			}
			check.Same(t, tt.want, got, "backend")
			problems := strings.Join(e.Problems, "; ")
			check.Same(t, true, strings.Contains(problems, tt.problem) && (tt.problem != "" || e.Verdict.Reason != "" || problems == ""), "problems %q, want %q", problems, tt.problem)
			want := []*Entry{e}
			if e.Front == "" {
				want = nil
			}
			check.Same(t, true, slices.Equal(table.Sent().Entries(), want), "sent here: %v, want %v", table.Sent().Entries(), want)
		})
	}
}

// TestBehindLocal annotates APIServices that name no Service. kube-apiserver keeps the spec of
// those of its own groups and of CustomResourceDefinitions, but not their annotations.
func TestBehindLocal(t *testing.T) {
	for _, group := range []string{"apps", "crd.example.com"} {
		in := manyRemotes(1)
		a := remoteService(group, "v1", "server-0")
		a.Annotations = map[string]string{behind.Service: "extensions/server-0:443"}
		a.Spec.Service, a.Spec.InsecureSkipTLSVerify = nil, false
		in.APIServices[a.Name] = a
		e := Build(in, nil).named(a.Name)
		check.Same(t, true, e.Local() && e.Verdict.Available(), "%s is served by %v: %+v", a.Name, e.Backend, e.Verdict)
	}
}

// Whoever writes EndpointSlices may write any number of endpoints. Only so many are used, the ready ones before others.
func TestEndpointsAreBounded(t *testing.T) {
	slice := func(from, n int, ready bool) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(443))}}}
		for i := range n {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{fmt.Sprintf("10.0.%d.%d", (from+i)/100, (from+i)%100)},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: new(true), Terminating: new(!ready)},
			})
		}
		return s
	}
	all, unready := slice(0, maxEndpoints, true), slice(0, maxSeen, false)
	for i := range unready.Endpoints {
		unready.Endpoints[i].Conditions.Serving = nil
	}
	tooMany := []string{"its Service has more than 1000 endpoints: the others are not used"}
	key, api := types.NamespacedName{Namespace: "extensions", Name: "server"}, remoteService("example.com", "v1", "server")
	for _, tt := range []struct {
		name     string
		slices   []*discoveryv1.EndpointSlice
		problems []string
	}{
		{"as many as allowed", []*discoveryv1.EndpointSlice{all}, nil},
		{"the same twice", []*discoveryv1.EndpointSlice{all, all}, nil},
		{"one more", []*discoveryv1.EndpointSlice{slice(maxEndpoints, 1, true), all}, tooMany},
		{"terminating ones", []*discoveryv1.EndpointSlice{slice(maxEndpoints, maxEndpoints, false), all}, tooMany},
		{"unready ones", []*discoveryv1.EndpointSlice{unready, all}, nil},
		{"one beyond those looked at", append(slices.Repeat([]*discoveryv1.EndpointSlice{all}, maxSeen/maxEndpoints), slice(maxEndpoints, 1, true)), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := Build(Input{
				APIServices: map[string]*apiregistrationv1.APIService{api.Name: api}, Services: map[types.NamespacedName]*corev1.Service{key: clusterIP(key)},
				Slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{key: tt.slices}, Complete: true,
			}, nil).Entries()[0]
			check.Same(t, maxEndpoints, len(e.Endpoints), "endpoints that are used")
			check.Same(t, tt.problems, e.Problems, "problems")
			terminating := slices.ContainsFunc(e.Endpoints, func(ep Endpoint) bool { return ep.Terminating })
			check.Same(t, false, terminating, "a terminating one is used instead of a ready one")
		})
	}
}
