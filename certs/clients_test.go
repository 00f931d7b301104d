package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// worth reports whether a chain currently verifies as a user's and as a front proxy's.
func worth(c *Clients, chain []*x509.Certificate) (user, proxy bool) {
	users, _ := c.VerifyUser(chain)
	proxies, _ := c.VerifyFrontProxy(chain)
	return len(users) > 0, len(proxies) > 0
}

func TestVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientCA, proxyCA, stranger := pki.NewCA("client CA"), pki.NewCA("front-proxy-ca"), pki.NewCA("stranger")
		s := store(t, Config{
			ClientCA:        written(t, clientCA.PEM()),
			RequestHeaderCA: written(t, proxyCA.PEM()),
			AllowedNames:    []string{"front-proxy-client", "other"},
		})
		hour := time.Hour
		const unknown, expired = "unknown authority", "expired"
		tests := []struct {
			name              string
			chain             []*x509.Certificate
			userErr, proxyErr string
		}{
			{"user", clientCA.Issue(pki.Leaf{CommonName: "jane"}).Chain(), "", unknown},
			{"user by an intermediate", clientCA.Intermediate("middle").Issue(pki.Leaf{}).Chain(), "", unknown},
			{"front proxy", proxyCA.Issue(pki.Leaf{CommonName: "front-proxy-client"}).Chain(), unknown, ""},
			{"front proxy of another name", proxyCA.Issue(pki.Leaf{CommonName: "jane"}).Chain(), unknown, "not among the allowed names"},
			{"allowed name of the wrong CA", clientCA.Issue(pki.Leaf{CommonName: "front-proxy-client"}).Chain(), "", unknown},
			{"stranger", stranger.Issue(pki.Leaf{CommonName: "front-proxy-client"}).Chain(), unknown, unknown},
			{"expired", clientCA.Issue(pki.Leaf{NotBefore: time.Now().Add(-hour), NotAfter: time.Now().Add(-time.Second)}).Chain(), expired, expired},
			{"of tomorrow", clientCA.Issue(pki.Leaf{NotBefore: time.Now().Add(hour)}).Chain(), "not yet valid", "not yet valid"},
			{"server usage", clientCA.Issue(pki.Leaf{Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}).Chain(), "incompatible key usage", unknown},
			{"too long", slices.Repeat([]*x509.Certificate{clientCA.Issue(pki.Leaf{}).Certificate}, 17), "certificates, more than", "certificates, more than"},
		}
		if user, proxy := worth(s.Clients(), nil); user || proxy {
			t.Error("a client without a certificate is authenticated")
		}
		for _, tt := range tests {
			for what, verify := range map[string]struct {
				by   func([]*x509.Certificate) ([][]*x509.Certificate, error)
				want string
			}{"user": {s.Clients().VerifyUser, tt.userErr}, "front proxy": {s.Clients().VerifyFrontProxy, tt.proxyErr}} {
				chains, err := verify.by(tt.chain)
				if (len(chains) > 0) != (verify.want == "") || (err == nil) != (verify.want == "") {
					t.Errorf("%s as %s: %d chains, %v, want error %q", tt.name, what, len(chains), err, verify.want)
				}
				if err != nil && !strings.Contains(err.Error(), verify.want) {
					t.Errorf("%s as %s: %v, want %q", tt.name, what, err, verify.want)
				}
			}
		}
	})
}

// Every change of the CAs makes a new generation, and takes effect at once.
func TestGeneration(t *testing.T) {
	ca, next := pki.NewCA("ca"), pki.NewCA("next")
	c := store(t, Config{ClientCA: written(t, ca.PEM())}).Clients()
	jane := ca.Issue(pki.Leaf{CommonName: "jane"}).Chain()
	if user, proxy := worth(c, jane); !user || proxy {
		t.Errorf("user %v, front proxy %v", user, proxy)
	}
	before := c.Generation()
	must.Do(t, c.takeClient([][]byte{next.PEM()}))
	if user, _ := worth(c, jane); user || c.Generation() == before {
		t.Error("a certificate of a removed CA still verifies as a user's, or the generation is unchanged")
	}
	before = c.Generation()
	if err := c.takeClient([][]byte{ca.PEM()[:100]}); err == nil || c.Generation() != before {
		t.Errorf("half a bundle was accepted, or is a new generation: %v", err)
	}
	if chains, err := c.VerifyFrontProxy(jane); chains != nil || err != nil {
		t.Errorf("without a request-header CA: %v, %v, want neither chains nor an error", chains, err)
	}
}

// A reload that would turn users into front proxies is refused and reported. A change of the other
// bundle resolves it.
func TestSharedCARefusedAtReload(t *testing.T) {
	clientCA, proxyCA := pki.NewCA("client CA"), pki.NewCA("front-proxy-ca")
	dir := t.TempDir()
	client, proxy := write(t, dir, "client.crt", clientCA.PEM()), write(t, dir, "proxy.crt", proxyCA.PEM())
	metrics := prometheus.NewRegistry()
	s := store(t, Config{ClientCA: client, RequestHeaderCA: proxy, Metrics: metrics})
	must.Run(t, s.Run)
	generation := s.Clients().Generation()
	status := func(use string) Status {
		all := s.Status()
		return all[slices.IndexFunc(all, func(st Status) bool { return st.Use == use })]
	}
	write(t, dir, "proxy.crt", pki.Bundle(proxyCA, clientCA))
	must.Soon(t, 10*time.Second, "the refusal", func() bool { return strings.Contains(status("requestheader-ca").Err, "share a certificate") })
	check.Same(t, "", status("serving").Err, "error for the serving pair")
	jane := clientCA.Issue(pki.Leaf{CommonName: "jane"}).Chain()
	if user, proxy := worth(s.Clients(), jane); !user || proxy || s.Clients().Generation() != generation {
		t.Error("the refused bundle is in force")
	}
	next := pki.NewCA("next client CA")
	write(t, dir, "client.crt", next.PEM())
	must.Soon(t, 10*time.Second, "both", func() bool { return status("requestheader-ca").Err == "" && status("client-ca").Err == "" })
	if user, proxy := worth(s.Clients(), jane); user || !proxy {
		t.Error("the corrected bundles are not in force")
	}
	var asked [][]byte
	visitor := &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked = info.AcceptableCAs
		return &tls.Certificate{}, nil
	}}
	must.Get2(shake(t, visitor, s.TLS()))(t)
	if len(asked) != 3 || !slices.ContainsFunc(asked, func(subject []byte) bool { return bytes.Equal(subject, next.Certificate.RawSubject) }) {
		t.Errorf("a new handshake requests certificates of %q", asked)
	}
}

// Users become front proxies only where a CA of theirs is one of front proxies, or issued by one.
func TestSharedCAs(t *testing.T) {
	made := func(raw, subject, key string) *x509.Certificate {
		return &x509.Certificate{Raw: []byte(raw), RawSubject: []byte(subject), RawSubjectPublicKeyInfo: []byte(key)}
	}
	root, namesake := pki.NewCA("root"), pki.NewCA("root")
	middle := root.Intermediate("middle").Certificate
	for name, tc := range map[string]struct {
		client, proxy   *x509.Certificate
		shares, issuing bool
	}{
		"the same":                   {middle, middle, true, false},
		"renewed":                    {made("old", "ca", "key"), made("new", "ca", "key"), true, false},
		"a namesake":                 {made("old", "ca", "key"), made("new", "ca", "other key"), false, false},
		"the same key, another name": {made("old", "ca", "key"), made("new", "other", "key"), false, false},
		"its issuer":                 {middle, root.Certificate, false, true},
		"a namesake of its issuer":   {middle, namesake.Certificate, false, false},
	} {
		bundle := []*x509.Certificate{namesake.Certificate, tc.proxy}
		check.Same(t, [2]bool{tc.shares, tc.issuing}, [2]bool{sharesKey(tc.client, bundle), issued(tc.client, bundle)}, "%s: shares a key, is issued", name)
		trusted := clientTrust{client: []*x509.Certificate{tc.client}, proxy: bundle}
		if err := trusted.check(); errors.Is(err, errShared) != (tc.shares || tc.issuing) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever cannot be taken is reported, and the flags' names go before those of the ConfigMap.
func TestTakeConfigMap(t *testing.T) {
	ca, proxyCA := pki.NewCA("kubernetes"), pki.NewCA("front-proxy-ca")
	c := newClients(Config{}, func() {})
	take := c.takeConfigMap(true)
	for want, data := range map[string]map[string][]byte{
		"parsing requestheader-allowed-names":  {"requestheader-allowed-names": []byte("x")},
		"parsing client-ca-file":               {"client-ca-file": []byte("x")},
		"parsing requestheader-client-ca-file": {"requestheader-client-ca-file": []byte("x")},
		"share a certificate":                  {"client-ca-file": ca.PEM(), "requestheader-client-ca-file": ca.PEM()},
	} {
		if err := take(data, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	data := map[string][]byte{"requestheader-client-ca-file": proxyCA.PEM()}
	for _, name := range []string{"front-proxy-client", "another"} {
		data["requestheader-allowed-names"] = []byte(`["` + name + `"]`)
		must.Do(t, take(data, nil))
		h, _ := c.Headers()
		check.Same(t, []string{name}, h.AllowedNames, "allowed names")
	}
	if err := c.takeClient([][]byte{proxyCA.PEM()}); err != nil {
		t.Errorf("one CA for all, with allowed names: %v", err)
	}
	must.Do(t, c.takeClient([][]byte{ca.PEM()}))
	must.Do(t, take(map[string][]byte{"requestheader-client-ca-file": proxyCA.PEM()}, nil))
	if err := c.takeClient([][]byte{proxyCA.PEM()}); !errors.Is(err, errShared) {
		t.Errorf("one CA for all: %v", err)
	}
	named := newClients(Config{AllowedNames: []string{"flag"}}, func() {})
	must.Do(t, named.takeConfigMap(true)(data, nil))
	for name, want := range map[string]bool{"flag": true, "another": false} {
		_, proxy := worth(named, proxyCA.Issue(pki.Leaf{CommonName: name}).Chain())
		check.Same(t, want, proxy, "%s is a front proxy", name)
	}
}

func TestConfigMap(t *testing.T) {
	ref := types.NamespacedName{Namespace: "kube-system", Name: "extension-apiserver-authentication"}
	synctest.Test(t, func(t *testing.T) {
		say := make(chan func(func(map[string][]byte, error)))
		watch := func(ctx context.Context, got types.NamespacedName, changed func(map[string][]byte, error)) error {
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
		must.Run(t, s.Run)
		deliver := func(data map[string]string, err error) {
			b := make(map[string][]byte)
			for k, v := range data {
				b[k] = []byte(v)
			}
			say <- func(changed func(map[string][]byte, error)) { changed(b, err) }
			synctest.Wait()
		}
		clientCA, proxyCA := pki.NewCA("kubernetes"), pki.NewCA("front-proxy-ca")
		jane := clientCA.Issue(pki.Leaf{CommonName: "jane"}).Chain()
		front := proxyCA.Issue(pki.Leaf{CommonName: "front-proxy-client"}).Chain()
		expect := func(when string, user, proxy bool) {
			t.Helper()
			if got, _ := worth(s.Clients(), jane); got != user {
				t.Errorf("%s: jane is a user: %v", when, got)
			}
			if _, got := worth(s.Clients(), front); got != proxy {
				t.Errorf("%s: the front proxy verifies as one: %v", when, got)
			}
		}
		expect("before it was read", false, false)
		knows := func(when string, want bool) {
			t.Helper()
			_, known := s.Clients().Headers()
			check.Same(t, want, known, "%s: known", when)
		}
		knows("before it was read", false)
		deliver(nil, errors.New("forbidden"))
		knows("forbidden", false)
		deliver(map[string]string{"requestheader-username-headers": "["}, nil)
		knows("broken", false)
		deliver(nil, fs.ErrNotExist)
		knows("there is none", true)
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
		got, _ := s.Clients().Headers()
		check.Same(t, want, got, "headers")
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
		full["client-ca-file"] = string(pki.Bundle(clientCA, proxyCA))
		deliver(full, nil)
		expect("a shared CA without names is refused", false, true)
	})
}

// Files take precedence over the ConfigMap. An untrusted ConfigMap provides only names.
func TestConfigMapAndFiles(t *testing.T) {
	clientCA, proxyCA, other := pki.NewCA("client CA"), pki.NewCA("front-proxy-ca"), pki.NewCA("other")
	data := map[string][]byte{"client-ca-file": other.PEM(), "requestheader-client-ca-file": proxyCA.PEM(), "requestheader-uid-headers": []byte(`["X-Remote-Uid"]`)}
	for _, trusted := range []bool{false, true} {
		ref := types.NamespacedName{Namespace: "kube-system", Name: "x"}
		cfg := Config{
			ClientCA: written(t, clientCA.PEM()), ConfigMap: ref, TrustConfigMap: trusted,
			Watch: func(ctx context.Context, _ types.NamespacedName, changed func(map[string][]byte, error)) error {
				changed(data, nil)
				<-ctx.Done()
				return ctx.Err()
			},
		}
		s := store(t, cfg)
		must.Run(t, s.Run)
		must.Soon(t, 10*time.Second, "the ConfigMap", func() bool {
			_, known := s.Clients().Headers()
			return known && s.Status()[len(s.Status())-1].Err == "" && !s.Status()[len(s.Status())-1].Changed.IsZero()
		})
		if user, _ := worth(s.Clients(), clientCA.Issue(pki.Leaf{}).Chain()); !user {
			t.Error("the file's CA is not used")
		}
		if user, _ := worth(s.Clients(), other.Issue(pki.Leaf{}).Chain()); user {
			t.Error("the ConfigMap's client CA is used in addition to the file's")
		}
		if _, proxy := worth(s.Clients(), proxyCA.Issue(pki.Leaf{}).Chain()); proxy != trusted {
			t.Errorf("trusted %v: the ConfigMap's request-header CA is used: %v", trusted, proxy)
		}
		if got, _ := s.Clients().Headers(); len(got.UID) != 1 {
			t.Errorf("UID headers %v", got.UID)
		}
		cfg.RequestHeaderCA = written(t, proxyCA.PEM())
		both := store(t, cfg)
		if held, none := len(s.heldByConfigMap()), len(both.heldByConfigMap()); (held == 1) != trusted || none != 0 {
			t.Errorf("trusted %v: the ConfigMap provides %d CAs, and %d beside two files", trusted, held, none)
		}
	}
}
