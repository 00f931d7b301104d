package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/needs"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestFaultOf(t *testing.T) {
	now := time.Now()
	cert := func(from, to time.Duration) trust.Certificate {
		return trust.Certificate{Subject: "x", NotBefore: now.Add(from), NotAfter: now.Add(to)}
	}
	for _, tt := range []struct {
		name string
		st   certs.Status
		want string
	}{
		{"none", certs.Status{}, ""},
		{"refused", certs.Status{Err: "no key", Certificates: []trust.Certificate{cert(-1, 1)}}, "no key"},
		{"refused, and the last good one has expired", certs.Status{Err: "no key", Certificates: []trust.Certificate{cert(-2, -1)}}, "the certificate of x has expired"},
		{"valid", certs.Status{Certificates: []trust.Certificate{cert(-1, 1)}}, ""},
		{"expired", certs.Status{Certificates: []trust.Certificate{cert(-2, -1)}}, "the certificate of x has expired"},
		{"not yet valid", certs.Status{Certificates: []trust.Certificate{cert(1, 2)}}, "the certificate of x is not valid before"},
		{"none of a bundle", certs.Status{Certificates: []trust.Certificate{cert(-2, -1), cert(1, 2)}}, "the certificate of x has expired"},
		{"one of a chain", certs.Status{Chain: true, Certificates: []trust.Certificate{cert(-1, 1), cert(-2, -1)}}, "the certificate of x has expired"},
		{"one of a bundle", certs.Status{Certificates: []trust.Certificate{cert(-2, -1), cert(-1, 1)}}, ""},
	} {
		check.Fault(t, tt.want, faultOf(&tt.st, now), "%s", tt.name)
	}
}

// A refused token was reviewed; every other error counts, until the next review.
func TestNoted(t *testing.T) {
	var ends needs.Outcome
	var fault error
	review := noted(&ends, func(context.Context, string) (bool, string, error) { return true, "x", fault })
	for _, tt := range []struct {
		name  string
		fault error
		fails bool
	}{
		{"answered", nil, false}, {"failed", errors.New("403"), true}, {"refused", authn.ErrUnauthenticated, false},
	} {
		fault = tt.fault
		if yes, x, err := review(t.Context(), ""); !yes || x != "x" || !errors.Is(err, fault) {
			t.Errorf("%s: %v %q %v", tt.name, yes, x, err)
		}
		check.Same(t, tt.fails, ends.Err(time.Time{}) != nil, "%s: fails", tt.name)
	}
}

// Users with tokens of an issuer that has given no keys notice that. Those of the former configuration notice nothing.
func TestIssuersJudged(t *testing.T) {
	away := errors.New("connection refused")
	check.Same(t, "", lookIssuers(nil, nil).Status, "all keys are known")
	check.Same(t, "Users with tokens of an issuer get 503", lookIssuers(away, away).Users, "no keys")
	check.Same(t, "the new --authentication-config is not active, the former one is: connection refused", lookIssuers(nil, away).Message, "a new one")
}

// What cannot be read from healthy apiservers is told, also beside an unhealthy one, from which nobody expects it.
func TestServersJudged(t *testing.T) {
	well, ill := registry.Endpoint{Health: registry.Healthy}, registry.Endpoint{Health: registry.Unhealthy, Message: "hangs"}
	away, back := errors.New("Service: away"), registry.Endpoint{Health: registry.Healthy, Since: time.Now()}
	for _, tt := range []struct {
		servers []registry.Endpoint
		unread  error
		want    string
	}{
		{[]registry.Endpoint{well, well}, nil, ""}, {[]registry.Endpoint{well, back}, away, ""}, {[]registry.Endpoint{well}, away, "the last state is used: Service: away"},
		{[]registry.Endpoint{well, ill}, nil, "1 of 2 local apiservers are unhealthy and get no requests: : hangs"},
		{[]registry.Endpoint{well, ill}, away, ": hangs; not all can be read, the last state is used: Service: away"}, {[]registry.Endpoint{ill}, away, ": hangs"},
	} {
		found := lookServers(tt.servers, tt.unread)
		check.Same(t, true, strings.HasSuffix(found.Message, tt.want), "%s, want %s", found.Message, tt.want)
		check.Same(t, tt.want != "", found.Failed(), "%s: it fails", tt.want)
	}
}

// An intended double is no fault of the registry; it hides none either.
func TestNotesPass(t *testing.T) {
	note, fault := directory.Fault{File: "a.yaml", Message: "the cluster has one, too", Note: true}, directory.Fault{File: "b.yaml", Message: "broken"}
	check.Same(t, "", problem(nil).Message, "none")
	check.Same(t, "", problem([]directory.Fault{note}).Status, "a note")
	check.Same(t, fault.String(), problem([]directory.Fault{note, fault}).Message, "a note and a fault")
}

// The checks of a real process: all pass on one that has what it needs; one whose limits are
// reached says so; and a serving certificate that has expired ends readiness.
func TestOwnChecks(t *testing.T) {
	policy := writeFile(t, filepath.Join(t.TempDir(), "policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	d := aloneDoor(t, "--max-connections=64", "--audit-log-path="+filepath.Join(t.TempDir(), "audit.log"), "--audit-policy-file="+policy, "--access-log="+filepath.Join(t.TempDir(), "access.log"))
	d.start(t)
	at := func(name string) (found answer.Check) {
		for _, c := range d.needs.List() {
			if c.Name == name {
				found = c
			}
		}
		return found
	}
	must.Soon(t, 20*time.Second, "all checks pass", func() bool {
		return !slices.ContainsFunc(d.needs.List(), func(c answer.Check) bool { return c.Status != needs.Passed })
	})
	for _, name := range []string{"table", "discovery", "authentication-configmap", "certificates", "registry", "registry-cache", "descriptors", "memory", "audit-log", "access-log"} {
		check.Same(t, name, at(name).Name, "a check")
	}
	fill(t, d.ports.front.Addr().String(), 60) // of 64: one client may have 62
	must.Soon(t, 20*time.Second, "a port is nearly full", func() bool {
		return d.lookDescriptors(time.Now()).Message == "nearly all connections that a port may have are open"
	})
	writeFile(t, filepath.Join(d.o.registry.dir, "bad.yaml"), "kind: Nonsense\n")
	d.auditLines.ends.Note(errors.New("no space left on device"))
	d.held.Add(d.held.Limit())
	defer d.held.Add(-d.held.Limit())
	d.accessLines.ends.Note(errors.New("no space left on device"))
	must.Soon(t, 20*time.Second, "four checks fail", func() bool {
		registry, audit, access, memory := at("registry"), at("audit-log"), at("access-log"), at("memory")
		return registry.Failed() && audit.Failed() && memory.Failed() && access.Failed()
	})
	check.Fault(t, "", d.ready.Err(nil), "readiness meanwhile")
	d.unfit = func() error { return errors.New("it has no names") }
	check.Same(t, "ConfigMap kube-system/extension-apiserver-authentication: it has no names", d.lookConfigMap(answer.Check{}).Message, "a ConfigMap that cannot be used")
	d.unfit, d.distrusted = func() error { return nil }, func(time.Time) error { return errors.New("unknown authority") }
	check.Has(t, d.lookConfigMap(answer.Check{}).Users, "certificates get 503, their writes 401")
	check.Same(t, "denied", d.lookConfigMap(answer.Check{Status: needs.Failed, Message: "denied"}).Message, "one that may not be read")
	late := d.pairs.judge(d.certs.Status(), time.Now().AddDate(100, 0, 0))
	check.Same(t, "Clients do not trust a certificate of this replica", late.Users, "in a hundred years")
	check.Fault(t, "has expired", d.ready.Err(nil), "readiness with an expired serving certificate")
}

// Each bundle is judged alone, wherever it comes from. A replica whose serving certificates are
// partly valid is ready: clients choose one by name.
func TestCertificatesJudged(t *testing.T) {
	now := time.Now()
	good := []trust.Certificate{{Subject: "good", NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}}
	early := []trust.Certificate{{Subject: "early", NotBefore: now.Add(time.Hour), NotAfter: now.Add(2 * time.Hour)}}
	old := []trust.Certificate{{Subject: "old", NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)}}
	value := func(use string, c []trust.Certificate) certs.Status {
		return certs.Status{Use: use, Source: "x", Certificates: c}
	}
	const some, refused = "Clients do not trust a certificate of this replica", "Users with certificates are refused"
	for _, tt := range []struct {
		name   string
		values []certs.Status
		users  string // what they notice
		failed bool
		gate   bool
	}{
		{"all valid", []certs.Status{value("serving", good), value("sni", good)}, "", false, false},
		{"the default pair", []certs.Status{value("serving", old), value("sni", old), value("sni", good)}, some, true, false},
		{"an SNI pair", []certs.Status{value("serving", good), value("sni", old)}, some, true, false},
		{"all pairs", []certs.Status{value("serving", old), value("sni", old)}, some, true, true},
		{"all pairs, and one is not valid yet", []certs.Status{value("serving", old), value("sni", early)}, some, true, false},
		{"all of them, without a default pair", []certs.Status{value("sni", old)}, some, true, true},
		{"an intermediate", []certs.Status{{Use: "serving", Chain: true, Certificates: append(good, old...)}}, some, true, false},
		{"refused, and the last good one is used", []certs.Status{{Use: "serving", Err: "no key", Certificates: good}}, "", true, false},
		{"the ConfigMap's client CA", []certs.Status{value("serving", good), value("authentication-configmap", append(old, good...)), value("client-ca", old), value("requestheader-ca", good)}, refused, true, false},
		{"the ConfigMap's CAs", []certs.Status{value("serving", good), value("authentication-configmap", old), value("client-ca", old), value("requestheader-ca", old)}, refused, true, false},
		{"the ConfigMap's request-header CA", []certs.Status{value("serving", good), value("client-ca", good), value("requestheader-ca", old)}, "Users of front proxies are refused", true, false},
	} {
		p := &pairs{}
		found := p.judge(tt.values, now)
		check.Same(t, tt.users, found.Users, "%s: users", tt.name)
		check.Same(t, tt.failed, found.Failed(), "%s: failed", tt.name)
		check.Same(t, tt.gate, p.serving.Load() != nil, "%s: ends readiness", tt.name)
	}
}

// A right to a ConfigMap is needed once, and not while a directory has it.
func TestBundles(t *testing.T) {
	from := func(name, bundle string) *registry.Entry {
		return &registry.Entry{Name: name, Backend: &registry.Backend{Namespace: "n", CAFrom: bundle}}
	}
	entries := []*registry.Entry{{Name: "local"}, from("none", ""), from("b", "two/ca.crt"), from("a", "one/ca.crt"), from("c", "one/x"), from("d", "clustertrustbundle/one")}
	check.Same(t, "[/one n/one n/two]", fmt.Sprint(bundles(entries, "", nil)), "of the cluster")
	check.Same(t, "[n/two]", fmt.Sprint(bundles(entries, "/etc/registry", map[string]string{"b": "not found"})), "with a directory that has the other")
}

// A right that is missing is named, on a server that answers only questions about rights.
func TestOwnRights(t *testing.T) {
	var allowed atomic.Bool
	at := serverAt(t, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": map[string]any{"allowed": allowed.Load()},
		})
	})
	d := doorBefore(t, at.URL)
	run, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = d.loops["rights"](run) }()
	must.Run(t, d.needs.Run)
	first := func() string {
		line, _ := (&answer.Status{Checks: d.needs.List()}).Served()
		return line
	}
	must.Soon(t, 20*time.Second, "the ConfigMap's rule is named", func() bool {
		return strings.Contains(first(), "Fairlead may not list configmaps extension-apiserver-authentication in namespace kube-system (deploy/base/rbac.yaml:26)")
	})
	d.kube.found.Note(errors.New("no other is named"))
	must.Soon(t, 20*time.Second, "a look-up that fails is told", func() bool { return strings.Contains(first(), "no other is named") })
	allowed.Store(true)
	must.Soon(t, 30*time.Second, "it is given back", func() bool { return !strings.Contains(first(), "may not") })
}
