package registry

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/bundle"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// An owner's Backend is private exactly as long as its overlap lasts, even if nothing else changes.
func TestOwnedForTheOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to := scripted(t, nil)
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
		for table, owner := range map[*Table]string{during: "v1.a.example.com", after: ""} {
			a, b := table.named("v1.a.example.com").Backend, table.named("v1.b.example.com").Backend
			if (a == b) != (owner == "") || a.Owner != owner {
				t.Errorf("its owner is %q, want %q: %+v, its neighbour's %+v", a.Owner, owner, a, b)
			}
		}
		if after.Generation() > during.Generation()+1 {
			t.Errorf("%d tables for one end", after.Generation()-during.Generation())
		}
		if next := time.Until(after.rebuildAt).Round(time.Minute); next != 8*time.Minute {
			t.Errorf("the next rebuild is in %v", next)
		}
	})
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
		"another type":       {bytes.ReplaceAll(ca, []byte("CERTIFICATE"), []byte("PUBLIC KEY")), 0, ""},
	} {
		b := parseBundle(tc.pem)
		certs, err := bundle.Parse(tc.pem) // as trust does
		warning, rest := strings.CutSuffix(b.problem, "; the rest is used")
		if len(certs) != tc.certs || rest != (tc.warning != "") || rest && warning != tc.warning || b.unusable != (tc.certs == 0) || (b.problem == "") != (err == nil) || (err == nil) != (tc.certs > 0 && tc.warning == "") {
			t.Errorf("%s: %d certificates, %v; problem %q, unusable: %v", name, len(certs), err, b.problem, b.unusable)
		}
	}
}
