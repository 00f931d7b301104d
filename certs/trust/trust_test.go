package trust

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/pki/cast"
)

// A configuration never resumes a session, so the second handshake sees the server's new certificate; it presents the
// client certificate where it should, accepts no TLS 1.1, and follows roots that change during the dial.
func TestHandshake(t *testing.T) {
	proxy := pki.NewCA("front-proxy-ca").Issue(pki.Leaf{CommonName: "front-proxy-client"}).TLS()
	s := newStage(t, Config{ClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &proxy, nil }})
	s.set("v1.a", "bundle=ca")
	s.set("v1.several", "bundle=ca", "name="+serverName+",b.svc") // the caller sends the one of the address
	must.Do(t, s.LocalBundle(s.cast.Bundle("ca")))
	refuses := func(client *tls.Config, server *tls.Config, what string) {
		t.Helper()
		_, _, err := cast.Shake(t, client, server)
		check.Same(t, true, err != nil, "refused: %s", what)
	}
	good, other := []tls.Certificate{s.pair("ca").TLS()}, []tls.Certificate{s.pair("ca,names=other.svc").TLS()}
	for target, shown := range map[string]int{"v1.a": 1, "v1.several": 1, "*v1.a": 1, "local@" + serverName: 0} {
		client := must.Get(s.config(target))(t)
		check.Same(t, nil, client.ClientSessionCache, "%s: sessions", target)
		name := serverName
		if target == "v1.several" {
			name = ""
		}
		check.Same(t, name, client.ServerName, "%s: the name that is sent", target)
		client.ServerName = serverName
		_, far := must.Get2(cast.Shake(t, client, &tls.Config{Certificates: good, ClientAuth: tls.RequestClientCert, MaxVersion: tls.VersionTLS12}))(t)
		check.Same(t, false, len(far.PeerCertificates) != shown || shown > 0 && !far.PeerCertificates[0].Equal(proxy.Leaf), "%s: the server saw %v", target, far.PeerCertificates)
		_, _, err := cast.Shake(t, client, &tls.Config{Certificates: other})
		check.Same(t, true, errors.As(err, new(x509.HostnameError)), "%s: another certificate, in a second handshake: %v", target, err)
		refuses(client, &tls.Config{Certificates: good, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, target+": TLS 1.1")
	}
	for leaf, accepted := range map[*pki.Leaf]bool{
		{URIs: 100}: true, {URIs: 101}: false,
		{Organizations: slices.Repeat([]string{"g"}, 4000)}: true, {Organizations: slices.Repeat([]string{"g"}, 7000)}: false,
	} {
		leaf.Names = []string{serverName}
		pair := s.cast["ca"].Issue(*leaf).TLS()
		_, _, err := cast.Shake(t, must.Get(s.config("v1.a"))(t), &tls.Config{Certificates: []tls.Certificate{pair}})
		check.Same(t, accepted, err == nil, "%d URIs and %d groups are accepted", leaf.URIs, len(leaf.Organizations))
	}
	check.Same(t, true, s.LocalBundle([]byte("x")) != nil, "a bundle of one byte is refused for the local apiserver")
	_, err := VerifyChain([]byte("x"), serverName, s.pair("ca").Chain())
	e, ok := errors.AsType[*Error](err)
	check.Same(t, true, ok && e.Reason() == reasonInvalidBundle, "a bundle of one byte for one chain: %v", err)
	s.set("v1.insecure", "insecure=true")
	check.Same(t, serverName, must.Get(s.config("v1.insecure"))(t).ServerName, "the name that is sent without verification")
	local := must.Get(s.config("local@" + serverName))(t)
	must.Do(t, s.LocalBundle(s.cast.Bundle("next")))
	refuses(local, &tls.Config{Certificates: good}, "a CA that was removed during a dial")
}

// A connection that was being made while its APIService was deleted is not trusted.
func TestGone(t *testing.T) {
	s := newStage(t, Config{})
	s.set("v1.a", "bundle=ca")
	was, chain := s.Trust.backends["v1.a"], s.pair("ca").Chain()
	open, _ := s.Guard("v1.a", s.backends["v1.a"], chain)
	s.do("", "drop", "v1.a")
	late, _ := was.guard(chain)
	for _, lost := range []<-chan struct{}{open, late} {
		check.Same(t, true, connection{lost: lost}.isLost(), "a connection to a former backend is lost")
	}
	check.Same(t, false, was.guarding(), "connections to a former backend are still counted")
	check.Same(t, true, was.handshake(s.pair("next").Chain()) != nil, "a foreign chain is accepted")
	check.Same(t, false, strings.Contains(s.shown("metrics"), "refused_total{"), "a series of a former backend")
}

// Open connections are not checked again for long, because others' dials wait for it: the rest are lost.
func TestRecheckIsBounded(t *testing.T) {
	for _, all := range []bool{true, false} { // else those of a leaf that has expired
		synctest.Test(t, func(t *testing.T) {
			s, slow := newStage(t, Config{}), x509.NewCertPool()
			s.set("v1.a", "bundle=ca")
			b, open, lost := s.Trust.backends["v1.a"], make([]connection, 10), 0
			for i := range open {
				open[i].lost, _ = b.guard(s.pair("ca").Chain())
			}
			slow.AddCertWithConstraint(s.cast.CA("ca").Certificate, func([]*x509.Certificate) error { time.Sleep(100 * time.Millisecond); return nil })
			b.current.Load().current.pool = slow
			if !all {
				time.Sleep(25 * time.Hour)
			}
			b.mu.Lock()
			b.recheckLocked(time.Now(), all)
			b.mu.Unlock()
			for _, c := range open {
				if c.isLost() {
					lost++
				}
			}
			check.Same(t, len(open)-3, lost, "connections are lost of which each would take 0.1 s; all are checked: %v", all)
		})
	}
}

// A CA that is renewed after a chain has expired ends no watch: it is trusted as before, but was not valid yet then.
func TestExpiredBeforeItsCAWasRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Config{})
		s.set("v1.a", "bundle=ca")
		open, b := s.guard("v1.a", s.pair("ca,until=1h")), s.Trust.backends["v1.a"]
		time.Sleep(2 * time.Hour)
		renewed := *s.cast.CA("ca").Certificate
		renewed.NotBefore = time.Now()
		for _, trusted := range []*x509.Certificate{&renewed, s.cast.CA("next").Certificate} {
			b.mu.Lock()
			b.setLocked(&view{name: serverName, current: newRoots([]*x509.Certificate{trusted})})
			b.recheckLocked(time.Now(), true)
			b.mu.Unlock()
			check.Same(t, trusted != &renewed, open.isLost(), "lost, if %s is trusted since %s", trusted.Subject, trusted.NotBefore)
		}
	})
}

// TLS works before Run for what is in the table. Run follows the table and time.
func TestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := pki.NewCA("ca")
		table := registry.Build(registry.Input{Complete: true, APIServices: map[string]*apiregistrationv1.APIService{"v1.x.example.com": {
			ObjectMeta: metav1.ObjectMeta{Name: "v1.x.example.com"},
			Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"}, Group: "x.example.com", Version: "v1", CABundle: ca.PEM(),
			},
		}}}, nil)
		entry := table.Entries()[0]
		cfg := Config{Tables: tablesOf(table)}
		must.Get(New(cfg).TLS(entry.Name, entry.Backend))(t) // before Run
		running := New(cfg)
		must.Run(t, running.Run)
		synctest.Wait()
		must.Do(t, running.LocalBundle(ca.PEM()))
		check.Same(t, 2, len(running.Status()), "the local apiserver and the APIServices in the status")
		open, release := running.Guard(entry.Name, entry.Backend, ca.Issue(pki.Leaf{Names: []string{serverName}, NotAfter: time.Now().Add(time.Minute)}).Chain())
		defer release()
		for _, expired := range []bool{false, true} {
			check.Same(t, expired, len(open) == 1, "a value for what has expired")
			time.Sleep(time.Minute + time.Second)
			synctest.Wait()
		}
	})
}

// A verdict has no bundle read again, nor a connection verified: a server could change its own all the time.
func TestVerdictsReadNoBundles(t *testing.T) {
	b, trust := &registry.Backend{Namespace: "x", CAFrom: "ca/bundle", Owner: "v1.a"}, New(Config{})
	for i, tt := range []struct {
		entries []*registry.Entry
		reads   bool
	}{
		{[]*registry.Entry{{Name: "v1.a", Backend: b}}, true},
		{[]*registry.Entry{{Name: "v1.a", Backend: b, Verdict: registry.Verdict{Status: "False"}}}, false},
		{[]*registry.Entry{{Name: "v1.a", Backend: new(*b)}}, true},
		{[]*registry.Entry{{Name: "v1.a"}}, true},
		{nil, false},
	} {
		trust.apply(uint64(i)+1, tt.entries)
		check.Same(t, tt.reads, trust.rewatch.Swap(false), "bundles are read with table %d", i+1)
	}
}

// All that refer to one bundle share what is read of it, also those that come later: it may have all public CAs.
func TestSharedBundleIsReadOnce(t *testing.T) {
	trust, ref := New(Config{Renewed: func(string) {}}), types.NamespacedName{Namespace: "x", Name: "ca"}
	w := &watches{t: trust, seen: make(map[types.NamespacedName]object)}
	var entries []*registry.Entry
	for i, name := range []string{"v1.a", "v1.b", "v1.c"} {
		b := &registry.Backend{Namespace: "x", CAFrom: "ca/bundle", Owner: name}
		entries = append(entries, &registry.Entry{Name: name, Backend: b})
		trust.apply(uint64(i)+1, slices.Clone(entries))
		if name == "v1.b" {
			o := object{map[string][]byte{"bundle": pki.NewCA("ca").PEM()}, nil, make(map[string]*view)}
			w.changed(t.Context(), ref, o)
		}
	}
	deliver(trust.references()[ref], w.seen[ref])
	first := trust.backends["v1.a"].current.Load().current
	for _, e := range entries {
		got := trust.backends[e.Name].current.Load().current
		check.Same(t, true, got != nil && got == first, "%s has the roots of the first", e.Name)
	}
}

// An object that changes, but not its bundle, has no connection verified: who may annotate it could do so all the time.
func TestSameBundleVerifiesNothing(t *testing.T) {
	b, ca := &registry.Backend{Namespace: "x", CAFrom: "ca/bundle", Owner: "v1.a", ServerName: serverName}, pki.NewCA("ca")
	trust := New(Config{Renewed: func(string) {}})
	trust.apply(1, []*registry.Entry{{Name: "v1.a", Backend: b}})
	s := trust.backends["v1.a"]
	s.referenced(b, ca.PEM(), nil, nil)
	_, release := s.guard(ca.Issue(pki.Leaf{Names: []string{serverName}}).Chain())
	defer release()
	for i, bundle := range [][]byte{ca.PEM(), append(ca.PEM(), pki.NewCA("new").PEM()...)} {
		must.Be(t, len(s.guards) == 1, "the connection is lost")
		for g := range s.guards {
			g.expired = true // until it is verified
			s.referenced(b, bundle, nil, nil)
			check.Same(t, i == 0, g.expired, "the connection is not verified with bundle %d", i+1)
		}
	}
}

// The trust at the end of a handshake decides. It may differ from that at its beginning, if the
// bundle was replaced meanwhile.
func TestReplacedDuringAHandshake(t *testing.T) {
	for overlap, want := range map[string]string{"0s": "UnknownAuthority", "1m": ""} { // an overlap goes on
		s := newStage(t, Config{})
		s.set("v1.a", "bundle=old", "overlap="+overlap)
		var replace sync.Once
		pool := x509.NewCertPool()
		pool.AddCertWithConstraint(s.cast.CA("old").Certificate, func([]*x509.Certificate) error {
			replace.Do(func() { s.set("v1.a", "bundle=next") })
			return nil
		})
		s.Trust.backends["v1.a"].current.Load().current.pool = pool
		for _, when := range []string{"during", "after"} {
			s.do(when+", with an overlap of "+overlap, "dial", "v1.a", "old", want)
		}
	}
}

// A view has roots, a fault, or no verification. One that had none of them must accept nobody.
func TestNothingToVerifyBy(t *testing.T) {
	_, _, err := new(view).verify(pki.NewCA("any").Issue(pki.Leaf{Names: []string{serverName}}).Chain(), time.Now())
	check.Same(t, true, err != nil, "a chain is refused without roots")
}

// Status and metrics are bounded, and have first what expires first. The leaves that were presented last
// stay, and one of each CA does.
func TestStatusIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, root := newStage(t, Config{}), pki.NewCA("root")
		end := func(i int) time.Time { return time.Now().Add(time.Duration(100-i/2) * time.Hour) } // two at a time
		var names []string
		for i := range maxLeaves + 2 {
			names = append(names, fmt.Sprint(i))
			s.cast[names[i]] = root.IntermediateUntil(names[i], end(i))
		}
		s.set("v1.a", "bundle="+strings.Join(names, "|"))
		const ofCA = `backend_expiration_timestamp_seconds{apiservice="v1.a",kind="ca"`
		check.Same(t, 1, strings.Count(s.shown("metrics"), ofCA), "expiries of CAs that verify nothing yet: of the last one")
		must.Do(t, s.dial("v1.a", s.cast["1"].Issue(pki.Leaf{CommonName: "other", Names: []string{serverName}})))
		for i := range maxLeaves + 2 {
			time.Sleep(time.Nanosecond)
			leaf := s.cast["0"].Issue(pki.Leaf{CommonName: fmt.Sprint(i), Names: []string{serverName}, NotAfter: end(i)})
			must.Do(t, s.dial("v1.a", leaf))
		}
		one := s.Status()[1]
		for name, list := range map[string][]Certificate{"CAs": one.CAs, "leaves": one.Leaves} {
			order := func(a, b Certificate) int {
				return cmp.Or(a.NotAfter.Compare(b.NotAfter), cmp.Compare(a.Fingerprint, b.Fingerprint))
			}
			check.Same(t, true, slices.IsSortedFunc(list, order), "%s are sorted: %+v", name, list)
		}
		old := slices.ContainsFunc(one.Leaves, func(c Certificate) bool { return c.Subject == "0" || c.Subject == "1" })
		check.Same(t, true, !old && len(one.Leaves) == maxLeaves, "%d leaves, the first two %v", len(one.Leaves), old)
		metrics := s.shown("metrics")
		check.Has(t, metrics, `kind="leaf",subject="other"`)
		check.Same(t, 2, strings.Count(metrics, ofCA), "expiries of CAs in:\n%s", metrics)
		for _, verifies := range []string{"0", "1"} {
			check.Same(t, 1, strings.Count(metrics, ofCA+`,subject="`+verifies+`"`), "expiries of CA %s in:\n%s", verifies, metrics)
		}
		for i := range maxLeaves { // of one key and subject, so all verify the leaves
			raw, name := slices.Clone(s.cast["0"].Certificate.Raw), fmt.Sprint("copy", i)
			raw[len(raw)-1] ^= byte(i + 1) // of the signature, which nobody verifies
			s.cast[name], names = &pki.CA{Certificate: must.Get(x509.ParseCertificate(raw))(t)}, append(names, name)
		}
		s.set("v1.a", "bundle="+strings.Join(names, "|"))
		check.Same(t, maxLeaves, strings.Count(s.shown("metrics"), ofCA), "expiries of as many CAs and two")
	})
}

// Run returns after its watches.
func TestRunWaitsForItsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		s := newStage(t, Config{Watch: func(ctx context.Context, _ types.NamespacedName, _ func(map[string][]byte, error)) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
			return ctx.Err()
		}})
		s.set("v1.a", "from=bundle/ca.crt")
		stop := must.Run(t, s.Run)
		time.Sleep(time.Second)
		stop()
		check.Same(t, true, ended, "the watch has ended")
	})
}
