package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/pki/cast"
)

// The address that a client dials selects a pair, too, by no wildcard: "*" is one label. There may be none.
func TestServingByAddress(t *testing.T) {
	cert := func(cn string) *tls.Certificate {
		return &tls.Certificate{Leaf: &x509.Certificate{Subject: pkix.Name{CommonName: cn}}}
	}
	for _, tt := range []struct{ pair, sni, want string }{
		{"10.0.0.9", "", "pair"}, {"*", "", "default"}, {"*", "api.example.com", "default"}, {"*", "kubernetes", "pair"},
	} {
		pair := NewPair(tt.pair)
		pair.current.Store(&pairState{cert: cert("pair")})
		names := newServingNames(cert("default"), []*Pair{pair})
		c, err := names.certificate(&tls.ClientHelloInfo{ServerName: tt.sni, Conn: addressed{}})
		check.Same(t, true, err == nil && c.Leaf.Subject.CommonName == tt.want, "a pair for %q serves %q %v, %v, want %s", tt.pair, tt.sni, c, err, tt.want)
	}
	check.Same(t, true, check.Err(newServingNames(nil, nil).certificate(&tls.ClientHelloInfo{})) != nil, "nothing is served without a pair")
}

// addressed is a connection with the local address 10.0.0.9.
type addressed struct{ net.Conn }

func (addressed) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 6443} }

// A connection holds its client's certificate, which must not be far larger than what was sent.
func TestHeavyCertificatesAreRefused(t *testing.T) {
	ca := pki.NewCA("ca")
	cert, key := must.Get2(ca.Issue(pki.Leaf{}).WriteFiles(t.TempDir(), "tls"))(t)
	s := must.Get(New(Config{Serving: PairSource{Cert: cert, Key: key}}))(t)
	for _, uris := range []int{100, 101} {
		client := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{ca.Issue(pki.Leaf{URIs: uris}).TLS()}}
		_, _, err := cast.Shake(t, client, s.TLS())
		check.Same(t, uris == 100, err == nil, "%d URIs are accepted", uris)
	}
}

// Run follows the ConfigMap that is named.
func TestRunFollowsTheConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, ref := pki.NewCA("kubernetes"), types.NamespacedName{Namespace: "kube-system", Name: "x"}
		watch := func(ctx context.Context, got types.NamespacedName, changed func(map[string][]byte, error)) error {
			check.Same(t, ref, got, "what is watched")
			changed(map[string][]byte{"client-ca-file": ca.PEM()}, nil)
			<-ctx.Done()
			return ctx.Err()
		}
		s := must.Get(New(Config{ConfigMap: ref, TrustConfigMap: true, Watch: watch}))(t)
		must.Run(t, s.Run)
		synctest.Wait()
		_, known := s.Clients().Headers()
		user, _ := worth(s.Clients(), ca.Issue(pki.Leaf{}).Chain())
		check.Same(t, [2]bool{true, true}, [2]bool{user, known}, "verified, and known")
	})
}

// directories returns each directory to watch once, including those that symlinks lead through.
func TestDirectories(t *testing.T) {
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	volume := filepath.Join(dir, "..1")
	must.Do(t, errors.Join(os.Mkdir(volume, 0o700), os.Symlink("..1", filepath.Join(dir, "..data")), os.Symlink("..data/tls.crt", filepath.Join(dir, "tls.crt"))))
	must.Do(t, os.WriteFile(filepath.Join(volume, "tls.crt"), nil, 0o600))
	check.Same(t, []string{dir, volume}, directories(filepath.Join(dir, "tls.crt")), "directories")
	// A folder's link leads to another link.
	x, y, z := filepath.Join(dir, "x"), filepath.Join(dir, "y"), filepath.Join(dir, "z")
	must.Do(t, errors.Join(os.Mkdir(x, 0o700), os.Mkdir(y, 0o700), os.Mkdir(z, 0o700), os.Symlink("../y/b", filepath.Join(x, "a")), os.Symlink(z, filepath.Join(y, "b"))))
	check.Same(t, []string{x, y, z}, directories(filepath.Join(x, "a", "missing")), "directories of links")
	must.Do(t, os.Symlink("loop", filepath.Join(x, "loop")))
	check.Same(t, []string{x}, directories(filepath.Join(x, "loop")), "directories of a loop")
}

// The updates of a Kubernetes volume and of files written by hand, as the kubelet and others make them.
func TestFilesFollowed(t *testing.T) {
	ca := pki.NewCA("ca")
	issue := func(cn string) *pki.Pair { return ca.Issue(pki.Leaf{CommonName: cn}) }
	dir := t.TempDir()
	volume := func(name string, p *pki.Pair) {
		t.Helper()
		must.Do(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		must.Get2(p.WriteFiles(filepath.Join(dir, name), "tls"))(t)
	}
	link := func(to, at string) {
		t.Helper()
		tmp := filepath.Join(dir, at+"_tmp")
		must.Do(t, errors.Join(os.Symlink(to, tmp), os.Rename(tmp, filepath.Join(dir, at))))
	}
	volume("..1", issue("one"))
	link("..1", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	write := func(name string, data []byte) {
		t.Helper()
		must.Do(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	write("kubeconfig", []byte("first"))
	var kubeconfig atomic.Value
	take := func(b []byte) error { kubeconfig.Store(string(b)); return nil }
	s := must.Get(New(Config{
		Serving: PairSource{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")},
		Files:   []File{{Use: "kubeconfig", Path: filepath.Join(dir, "kubeconfig"), Take: take}},
	}))(t)
	must.Run(t, s.Run)
	serves := func(what, cn string) {
		t.Helper()
		must.Soon(t, 10*time.Second, what, func() bool {
			near, _, err := cast.Shake(t, &tls.Config{InsecureSkipVerify: true}, s.TLS())
			return err == nil && near.PeerCertificates[0].Subject.CommonName == cn && s.Status()[0].Err == ""
		})
	}
	fault := func(what, part string) {
		t.Helper()
		must.Soon(t, 10*time.Second, "the fault of "+what, func() bool { return strings.Contains(s.Status()[0].Err, part) })
	}
	serves("the first", "one")

	volume("..2", issue("two"))
	link("..2", "..data")
	must.Do(t, os.RemoveAll(filepath.Join(dir, "..1")))
	serves("the swapped symlink", "two")

	third := issue("three")
	write("..2/tls.key", third.KeyPEM())
	fault("a key before its certificate", "parsing key pair")
	check.Same(t, "two", s.pair.Certificate().Leaf.Subject.CommonName, "the last good pair")
	whole := third.CertPEM()
	write("..2/tls.crt", whole[:len(whole)/2])
	write("..2/tls.crt", whole)
	serves("the certificate", "three")

	before := s.pair.Changed()
	must.Do(t, os.Remove(filepath.Join(dir, "tls.crt")))
	fault("a deleted file", "no such file")
	link("..data/tls.crt", "tls.crt")
	serves("the recreated file", "three")
	check.Same(t, true, s.pair.Changed() == before, "the same pair is no change")
	link("..3", "..data")
	fault("a dangling link", "no such file")
	volume("..3", issue("four"))
	// A new target of the link causes no event in a watched directory; replacing the link does.
	link("..3", "..data")
	serves("the link that leads somewhere", "four")

	write("..3/tls.crt", nil)
	fault("an empty file", "empty")
	write("kubeconfig", []byte("second"))
	must.Soon(t, 10*time.Second, "the kubeconfig", func() bool { return kubeconfig.Load() == "second" })
}

// worth reports whether a chain currently verifies as a user's and as a front proxy's.
func worth(c *Clients, chain []*x509.Certificate) (user, proxy bool) {
	users, _ := c.VerifyUser(chain)
	proxies, _ := c.VerifyFrontProxy(chain)
	return len(users) > 0, len(proxies) > 0
}

// Users become front proxies only where a CA of theirs is one of front proxies, or issued by one.
func TestSharedCAs(t *testing.T) {
	made := func(raw, subject, key string) *x509.Certificate {
		return &x509.Certificate{Raw: []byte(raw), RawSubject: []byte(subject), RawSubjectPublicKeyInfo: []byte(key)}
	}
	root, namesake := pki.NewCA("root"), pki.NewCA("root")
	middle := root.Intermediate("middle").Certificate
	for name, tc := range map[string]struct {
		client, proxy *x509.Certificate
		refused       bool
	}{
		"the same":                   {middle, middle, true},
		"renewed":                    {made("old", "ca", "key"), made("new", "ca", "key"), true},
		"a namesake":                 {made("old", "ca", "key"), made("new", "ca", "other key"), false},
		"the same key, another name": {made("old", "ca", "key"), made("new", "other", "key"), false},
		"its issuer":                 {middle, root.Certificate, true},
		"a namesake of its issuer":   {middle, namesake.Certificate, false},
	} {
		bundle := []*x509.Certificate{namesake.Certificate, tc.proxy}
		trusted := clientTrust{client: []*x509.Certificate{tc.client}, proxy: bundle}
		check.Same(t, tc.refused, errors.Is(trusted.check(), errShared), "%s: refused", name)
	}
}

// shake is a handshake of a client with the listeners.
func (s *stage) shake(client *tls.Config) (near, far tls.ConnectionState, err error) {
	s.t.Helper()
	return cast.Shake(s.t, client, s.TLS())
}

// asks returns of which CAs a client is asked for certificates. Any certificate will do, and none
// is remembered for another handshake.
func (s *stage) asks() (subjects []string) {
	s.t.Helper()
	stranger := s.pair("stranger").TLS()
	client := &tls.Config{
		InsecureSkipVerify: true, ServerName: "localhost", ClientSessionCache: tls.NewLRUClientSessionCache(1),
		MaxVersion: tls.VersionTLS12, // a ticket would come within the handshake
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			subjects = nil
			for _, der := range info.AcceptableCAs {
				var name pkix.RDNSequence
				must.Get(asn1.Unmarshal(der, &name))(s.t)
				subjects = append(subjects, strings.TrimPrefix(name.String(), "CN="))
			}
			return &stranger, nil
		},
	}
	for range 2 {
		near, far := must.Get2(s.shake(client))(s.t)
		check.Same(s.t, true, !near.DidResume && len(far.PeerCertificates) == 1 && far.PeerCertificates[0].Equal(stranger.Leaf), "%s: resumed: %v; presented: %v", s.at, near.DidResume, far.PeerCertificates)
	}
	slices.Sort(subjects)
	return subjects
}

// The ConfigMap counts as read only when its CAs are in force: before, a client's certificate would count as none.
func TestConfigMapIsKnownWithItsCAs(t *testing.T) {
	var c *Clients
	known := func() bool { _, is := c.Headers(); return is }
	cfg := Config{ConfigMap: types.NamespacedName{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, TrustConfigMap: true}
	c = newClients(cfg, func() { check.Same(t, false, known(), "known while the CAs are put in force") })
	must.Do(t, c.takeConfigMap(map[string][]byte{"client-ca-file": pki.NewCA("clients").PEM()}, nil))
	check.Same(t, true, known(), "known afterwards")
}
