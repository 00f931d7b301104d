package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func chainOf(t *testing.T, pair *pki.Pair) []*x509.Certificate {
	t.Helper()
	var chain []*x509.Certificate
	for _, der := range pair.TLS().Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, c)
	}
	return chain
}

func TestVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientCA, proxyCA, stranger := pki.NewCA("client CA"), pki.NewCA("front-proxy-ca"), pki.NewCA("stranger")
		s := store(t, Config{
			ClientCA:        Source{Inline: clientCA.PEM()},
			RequestHeaderCA: Source{Inline: proxyCA.PEM()},
			AllowedNames:    []string{"front-proxy-client", "other"},
		})
		day := 24 * time.Hour
		tests := []struct {
			name      string
			chain     []*x509.Certificate
			user      bool
			proxy     bool
			userErr   string
			proxyErr  string
			wantUntil time.Duration
		}{
			{name: "none"},
			{name: "user", chain: chainOf(t, clientCA.Issue(pki.Leaf{CommonName: "jane"})), user: true, proxyErr: "unknown authority", wantUntil: retryAfter},
			{
				name:  "user for half a minute",
				chain: chainOf(t, clientCA.Issue(pki.Leaf{NotAfter: time.Now().Add(30 * time.Second)})),
				user:  true, proxyErr: "unknown authority", wantUntil: 30 * time.Second,
			},
			{name: "user by an intermediate", chain: chainOf(t, clientCA.Intermediate("middle").Issue(pki.Leaf{})), user: true, proxyErr: "unknown authority", wantUntil: retryAfter},
			{name: "front proxy", chain: chainOf(t, proxyCA.Issue(pki.Leaf{CommonName: "front-proxy-client"})), userErr: "unknown authority", proxy: true, wantUntil: retryAfter},
			{name: "front proxy of another name", chain: chainOf(t, proxyCA.Issue(pki.Leaf{CommonName: "jane"})), userErr: "unknown authority", proxyErr: "not among the allowed names", wantUntil: retryAfter},
			{name: "allowed name of the wrong CA", chain: chainOf(t, clientCA.Issue(pki.Leaf{CommonName: "front-proxy-client"})), user: true, proxyErr: "unknown authority", wantUntil: retryAfter},
			{name: "stranger", chain: chainOf(t, stranger.Issue(pki.Leaf{CommonName: "front-proxy-client"})), userErr: "unknown authority", proxyErr: "unknown authority", wantUntil: retryAfter},
			{name: "expired", chain: chainOf(t, clientCA.Issue(pki.Leaf{NotBefore: time.Now().Add(-day), NotAfter: time.Now().Add(-time.Second)})), userErr: "expired", proxyErr: "expired", wantUntil: retryAfter},
			{name: "server usage", chain: chainOf(t, clientCA.Issue(pki.Leaf{Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})), userErr: "incompatible key usage", proxyErr: "unknown authority", wantUntil: retryAfter},
			{name: "too long", chain: slicesRepeat(clientCA.Issue(pki.Leaf{}).Certificate, maxChain+1), userErr: "certificates, more than", proxyErr: "certificates, more than", wantUntil: retryAfter},
		}
		for _, tt := range tests {
			v := s.Clients().Verify(nil, tt.chain)
			if (v.User != nil) != tt.user || v.FrontProxy != tt.proxy {
				t.Errorf("%s: user %v, front proxy %v, want %v, %v", tt.name, v.User != nil, v.FrontProxy, tt.user, tt.proxy)
			}
			for _, e := range []struct {
				got  error
				want string
			}{{v.UserErr, tt.userErr}, {v.FrontProxyErr, tt.proxyErr}} {
				if (e.got == nil) != (e.want == "") || e.got != nil && !strings.Contains(e.got.Error(), e.want) {
					t.Errorf("%s: error %v, want %q", tt.name, e.got, e.want)
				}
			}
			var until time.Duration
			if !v.Until.IsZero() {
				until = time.Until(v.Until)
			}
			if until != tt.wantUntil {
				t.Errorf("%s: holds for %v, want %v", tt.name, until, tt.wantUntil)
			}
		}
	})
}

func slicesRepeat(c *x509.Certificate, n int) []*x509.Certificate {
	out := make([]*x509.Certificate, n)
	for i := range out {
		out[i] = c
	}
	return out
}

// One verdict serves a connection until its chain expires, the CAs change, or another leaf appears.
func TestVerdictIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := pki.NewCA("ca")
		s := store(t, Config{ClientCA: Source{Inline: ca.PEM()}})
		c := s.Clients()
		chain := chainOf(t, ca.Issue(pki.Leaf{CommonName: "jane", NotAfter: time.Now().Add(90 * time.Second)}))
		var slot atomic.Pointer[Verdict]
		first := c.Verify(&slot, chain)
		if c.Verify(&slot, chain) != first {
			t.Error("verified twice")
		}
		if other := c.Verify(&slot, chainOf(t, pki.NewCA("stranger").Issue(pki.Leaf{}))); other.User != nil {
			t.Error("the slot gave its identity to another chain")
		}
		if none := c.Verify(&slot, nil); none.User != nil {
			t.Error("the slot gave its identity to nobody")
		}
		time.Sleep(89 * time.Second)
		if c.Verify(&slot, chain).User == nil {
			t.Error("ended early")
		}
		time.Sleep(2 * time.Second)
		if v := c.Verify(&slot, chain); v.User != nil || v.UserErr == nil {
			t.Error("an expired certificate is a user on an open connection")
		}
		fresh := chainOf(t, ca.Issue(pki.Leaf{CommonName: "jane"}))
		if c.Verify(&slot, fresh).User == nil {
			t.Error("a good certificate is no user")
		}
		if err := c.takeClient([][]byte{pki.NewCA("next").PEM()}); err != nil {
			t.Fatal(err)
		}
		if c.Verify(&slot, fresh).User != nil {
			t.Error("a certificate of a removed CA is a user on an open connection")
		}
		tomorrow := chainOf(t, ca.Issue(pki.Leaf{NotBefore: time.Now().Add(30 * time.Second)}))
		if err := c.takeClient([][]byte{ca.PEM()}); err != nil {
			t.Fatal(err)
		}
		if c.Verify(&slot, tomorrow).User != nil {
			t.Error("a certificate of tomorrow is a user")
		}
		time.Sleep(retryAfter)
		if c.Verify(&slot, tomorrow).User == nil {
			t.Error("tomorrow has come and it still is none")
		}
	})
}

// A reload that would make users front proxies is refused and said; a change of the other bundle mends it.
func TestSharedCARefusedAtReload(t *testing.T) {
	clientCA, proxyCA := pki.NewCA("client CA"), pki.NewCA("front-proxy-ca")
	dir := t.TempDir()
	client, proxy := write(t, dir, "client.crt", clientCA.PEM()), write(t, dir, "proxy.crt", proxyCA.PEM())
	metrics := prometheus.NewRegistry()
	s := store(t, Config{ClientCA: Source{File: client}, RequestHeaderCA: Source{File: proxy}, Metrics: metrics})
	run(t, s)
	generation := s.Clients().Generation()
	status := func(use string) Status {
		for _, st := range s.Status() {
			if st.Use == use {
				return st
			}
		}
		t.Fatalf("no status of %s", use)
		return Status{}
	}
	write(t, dir, "proxy.crt", bundleOf(proxyCA, clientCA))
	waitFor(t, "the refusal", func() bool { return strings.Contains(status("requestheader-ca").Err, "share a certificate") })
	jane := chainOf(t, clientCA.Issue(pki.Leaf{CommonName: "jane"}))
	if v := s.Clients().Verify(nil, jane); v.User == nil || v.FrontProxy || s.Clients().Generation() != generation {
		t.Errorf("the refused bundle is in force: %+v", v)
	}
	next := pki.NewCA("next client CA")
	write(t, dir, "client.crt", next.PEM())
	waitFor(t, "both", func() bool { return status("requestheader-ca").Err == "" && status("client-ca").Err == "" })
	if v := s.Clients().Verify(nil, jane); v.User != nil || !v.FrontProxy {
		t.Errorf("the mended bundles are not in force: %+v", v)
	}
}

func TestConfigMap(t *testing.T) {
	ref := trust.Ref{Kind: "ConfigMap", Namespace: "kube-system", Name: "extension-apiserver-authentication"}
	synctest.Test(t, func(t *testing.T) {
		say := make(chan func(func(map[string][]byte, error)))
		watch := func(ctx context.Context, got trust.Ref, changed func(map[string][]byte, error)) error {
			if got != ref {
				t.Errorf("watching %v", got)
			}
			for {
				select {
				case f := <-say:
					f(changed)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		s := store(t, Config{ConfigMap: ref, TrustConfigMap: true, Watch: watch})
		run(t, s)
		deliver := func(data map[string]string, err error) {
			b := make(map[string][]byte)
			for k, v := range data {
				b[k] = []byte(v)
			}
			say <- func(changed func(map[string][]byte, error)) { changed(b, err) }
			synctest.Wait()
		}
		clientCA, proxyCA := pki.NewCA("kubernetes"), pki.NewCA("front-proxy-ca")
		jane := chainOf(t, clientCA.Issue(pki.Leaf{CommonName: "jane"}))
		front := chainOf(t, proxyCA.Issue(pki.Leaf{CommonName: "front-proxy-client"}))
		expect := func(when string, user, proxy bool) {
			t.Helper()
			if got := s.Clients().Verify(nil, jane).User != nil; got != user {
				t.Errorf("%s: jane is a user: %v", when, got)
			}
			if got := s.Clients().Verify(nil, front).FrontProxy; got != proxy {
				t.Errorf("%s: the front proxy is one: %v", when, got)
			}
		}
		expect("before it was read", false, false)
		full := map[string]string{
			"client-ca-file":                     string(clientCA.PEM()),
			"requestheader-client-ca-file":       string(proxyCA.PEM()),
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
			"requestheader-allowed-names":        `["front-proxy-client"]`,
		}
		deliver(full, nil)
		expect("read", true, true)
		want := &RequestHeaders{Username: []string{"X-Remote-User"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-Remote-Extra-"}, AllowedNames: []string{"front-proxy-client"}}
		if d := cmp.Diff(want, s.Clients().Headers()); d != "" {
			t.Errorf("headers: %s", d)
		}
		deliver(nil, errors.New("the apiserver is away"))
		expect("a read that failed changes nothing", true, true)
		broken := map[string]string{"client-ca-file": "-----BEGIN CERTIFICATE-----\n", "requestheader-client-ca-file": string(proxyCA.PEM())}
		deliver(broken, nil)
		expect("a broken CA keeps the last good", true, true)
		if got := s.Status()[1].Err; !strings.Contains(got, "client-ca-file") {
			t.Errorf("status: %q", got)
		}
		full["requestheader-allowed-names"] = `["somebody-else"]`
		deliver(full, nil)
		expect("another name", true, false)
		full["requestheader-allowed-names"] = `{`
		deliver(full, nil)
		expect("broken names keep the last good", true, false)
		full["requestheader-allowed-names"] = `[]`
		deliver(full, nil)
		expect("any name", true, true)
		delete(full, "client-ca-file")
		deliver(full, nil)
		expect("a CA taken out", false, true)
		deliver(nil, fs.ErrNotExist)
		expect("deletion ends trust", false, false)
		deliver(full, nil)
		expect("and recreation brings it back", false, true)
		full["client-ca-file"] = string(bundleOf(clientCA, proxyCA))
		deliver(full, nil)
		expect("a shared CA without names is refused", false, true)
	})
}

// Files win over the ConfigMap, and without trust it gives only names.
func TestConfigMapAndFiles(t *testing.T) {
	clientCA, proxyCA, other := pki.NewCA("client CA"), pki.NewCA("front-proxy-ca"), pki.NewCA("other")
	data := map[string][]byte{"client-ca-file": other.PEM(), "requestheader-client-ca-file": proxyCA.PEM(), "requestheader-uid-headers": []byte(`["X-Remote-Uid"]`)}
	for _, trusted := range []bool{false, true} {
		ref := trust.Ref{Namespace: "kube-system", Name: "x"}
		s := store(t, Config{
			ClientCA: Source{Inline: clientCA.PEM()}, ConfigMap: ref, TrustConfigMap: trusted,
			Watch: func(ctx context.Context, _ trust.Ref, changed func(map[string][]byte, error)) error {
				changed(data, nil)
				<-ctx.Done()
				return ctx.Err()
			},
		})
		run(t, s)
		waitFor(t, "the ConfigMap", func() bool {
			return s.Clients().Headers() != nil && s.Status()[len(s.Status())-1].Err == "" && !s.Status()[len(s.Status())-1].Changed.IsZero()
		})
		if v := s.Clients().Verify(nil, chainOf(t, clientCA.Issue(pki.Leaf{}))); v.User == nil {
			t.Error("the file's CA does not count")
		}
		if v := s.Clients().Verify(nil, chainOf(t, other.Issue(pki.Leaf{}))); v.User != nil {
			t.Error("the ConfigMap's client CA counts beside a file")
		}
		if v := s.Clients().Verify(nil, chainOf(t, proxyCA.Issue(pki.Leaf{}))); v.FrontProxy != trusted {
			t.Errorf("trusted %v: the ConfigMap's request-header CA counts: %v", trusted, v.FrontProxy)
		}
		if got := s.Clients().Headers().UID; len(got) != 1 {
			t.Errorf("UID headers %v", got)
		}
	}
}

func chainOfOne(c *x509.Certificate) []*x509.Certificate { return []*x509.Certificate{c} }
