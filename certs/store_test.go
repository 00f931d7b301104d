package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// write writes a file into a directory and returns its path.
func write(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must.Do(t, os.WriteFile(path, data, 0o600))
	return path
}

// written writes a bundle into a new file.
func written(t *testing.T, bundle []byte) string {
	t.Helper()
	return write(t, t.TempDir(), "ca.crt", bundle)
}

// pairFiles writes a key pair into new files.
func pairFiles(t *testing.T, p *pki.Pair) PairSource {
	t.Helper()
	cert, key := must.Get2(p.WriteFiles(t.TempDir(), "tls"))(t)
	return PairSource{Cert: cert, Key: key}
}

func store(t *testing.T, cfg Config) *Store {
	t.Helper()
	return must.Get(New(cfg))(t)
}

// shake runs one handshake over a pipe and returns the state of each side.
func shake(t *testing.T, client, server *tls.Config) (near, far tls.ConnectionState, err error) {
	t.Helper()
	a, b := net.Pipe()
	type result struct {
		cs  tls.ConnectionState
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer b.Close()
		s := tls.Server(b, server)
		err := s.HandshakeContext(t.Context())
		done <- result{s.ConnectionState(), err}
		if err == nil {
			io.Copy(io.Discard, s)
		}
	}()
	c := tls.Client(a, client)
	cerr := c.HandshakeContext(t.Context())
	r := <-done
	a.Close()
	return c.ConnectionState(), r.cs, errors.Join(cerr, r.err)
}

func TestServing(t *testing.T) {
	ca := pki.NewCA("serving CA")
	issue := func(cn string, names ...string) *pki.Pair { return ca.Issue(pki.Leaf{CommonName: cn, Names: names}) }
	sni := func(p *pki.Pair, names ...string) PairSource {
		src := pairFiles(t, p)
		src.Names = names
		return src
	}
	labels := func(label string, n int) string { return strings.Repeat(label+".", n) + "deep.test" }
	clientCA, proxyCA := pki.NewCA("client CA"), pki.NewCA("front-proxy-ca")
	s := store(t, Config{
		Serving: pairFiles(t, issue("default")),
		SNI: []PairSource{
			sni(issue("first", "a.example.com", "*.example.com")),
			sni(issue("second", "a.example.com", "b.example.com")),
			sni(issue("explicit"), "B.example.com", "*.wild.test", "10.0.0.9", labels("*", maxWildcards), labels("*", maxWildcards+1)),
			sni(issue("cn.test")),
		},
		ClientCA:        written(t, clientCA.PEM()),
		RequestHeaderCA: written(t, proxyCA.PEM()),
	})
	for name, want := range map[string]string{
		"":                                 "default",
		"nobody.test":                      "default",
		"a.example.com":                    "first",
		"A.Example.COM":                    "first",
		"c.example.com":                    "first",
		"c.d.example.com":                  "default",
		"b.example.com":                    "explicit",
		"x.wild.test":                      "explicit",
		"cn.test":                          "cn.test",
		"second":                           "second",
		strings.Repeat("a.", 100) + "test": "default",
		labels("a", maxWildcards):          "explicit",
		labels("a", maxWildcards+1):        "default",
	} {
		near, far, err := shake(t, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"http/1.1", "h2"}}, s.TLS())
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		check.Same(t, want, near.PeerCertificates[0].Subject.CommonName, "%q: served", name)
		check.Same(t, "h2", far.NegotiatedProtocol, "%q: negotiated", name)
	}
	if c, err := newServingNames(nil, nil).certificate(&tls.ClientHelloInfo{}); err == nil {
		t.Errorf("no pair: served %v", c)
	}
	hello := &tls.ClientHelloInfo{Conn: addressed{}}
	names := newServingNames(s.pair.Certificate(), []sniPair{{s.sni[2].Certificate(), []string{"10.0.0.9"}}})
	if c, _ := names.certificate(hello); c.Leaf.Subject.CommonName != "explicit" {
		t.Errorf("by address: served %q, want explicit", c.Leaf.Subject.CommonName)
	}
	_, _, err := shake(t, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, s.TLS())
	if err == nil {
		t.Error("TLS 1.1 was accepted")
	}
	check.Same(t, []string{"h2", "http/1.1"}, s.TLS().NextProtos, "the protocols by which net/http decides")
	const suite = tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	chosen := store(t, Config{CipherSuites: []uint16{suite}})
	near, _ := must.Get2(shake(t, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, chosen.TLS()))(t)
	check.Same(t, uint16(suite), near.CipherSuite, "cipher suite, with TLS 1.2")
	newest := store(t, Config{MinVersion: tls.VersionTLS13})
	if _, _, err := shake(t, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, newest.TLS()); err == nil {
		t.Error("TLS 1.2 was accepted, although 1.3 is the least")
	}
}

// addressed is a connection with the local address 10.0.0.9.
type addressed struct{ net.Conn }

func (addressed) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 6443} }

// The server requests certificates of both CAs, accepts any, and issues no tickets.
func TestClientCertificateRequest(t *testing.T) {
	clientCA, proxyCA := pki.NewCA("client CA"), pki.NewCA("front-proxy-ca")
	s := store(t, Config{ClientCA: written(t, clientCA.PEM()), RequestHeaderCA: written(t, proxyCA.PEM())})
	stranger := pki.NewCA("stranger").Issue(pki.Leaf{CommonName: "eve"}).TLS()
	cache := tls.NewLRUClientSessionCache(1)
	var asked [][]byte
	client := &tls.Config{
		InsecureSkipVerify: true, ServerName: "localhost", ClientSessionCache: cache,
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = info.AcceptableCAs
			return &stranger, nil
		},
	}
	_, far := must.Get2(shake(t, client, s.TLS()))(t)
	if len(asked) != 2 || !bytes.Equal(asked[0], clientCA.Certificate.RawSubject) && !bytes.Equal(asked[1], clientCA.Certificate.RawSubject) {
		t.Errorf("certificates of %d CAs are requested, want both", len(asked))
	}
	if len(far.PeerCertificates) != 1 || far.PeerCertificates[0].Subject.CommonName != "eve" {
		t.Errorf("the stranger's certificate did not arrive: %v", far.PeerCertificates)
	}
	if near, _, err := shake(t, client, s.TLS()); err != nil || near.DidResume {
		t.Errorf("second handshake: resumed %v, %v", near.DidResume, err)
	}
}

func TestSelfSigned(t *testing.T) {
	s := store(t, Config{})
	leaf := s.pair.Certificate().Leaf
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	for _, name := range []string{"localhost", "127.0.0.1"} {
		if _, _, err := shake(t, &tls.Config{ServerName: name, RootCAs: roots}, s.TLS()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if user, proxy := worth(s.Clients(), []*x509.Certificate{leaf}); user || proxy {
		t.Error("a certificate is trusted without CAs")
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	ca := pki.NewCA("ca")
	pair := ca.Issue(pki.Leaf{})
	certFile, keyFile := must.Get2(pair.WriteFiles(dir, "tls"))(t)
	other := write(t, dir, "other.key", ca.Issue(pki.Leaf{}).KeyPEM())
	empty := write(t, dir, "empty.crt", nil)
	middle := ca.Intermediate("middle")
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"no such file", Config{Serving: PairSource{Cert: filepath.Join(dir, "none.crt"), Key: keyFile}}, "reading serving: stat"},
		{"a directory", Config{Serving: PairSource{Cert: dir, Key: keyFile}}, "not a regular file"},
		{"another key", Config{Serving: PairSource{Cert: certFile, Key: other}}, "reading serving: parsing key pair"},
		{"no key", Config{ProxyClient: PairSource{Cert: certFile}}, "reading proxy-client: stat"},
		{"empty", Config{ClientCA: empty}, "reading client-ca: reading " + empty},
		{"a key for a bundle", Config{RequestHeaderCA: keyFile}, "no PEM certificate"},
		{"no certificate", Config{Serving: PairSource{Key: keyFile}}, "reading serving: stat"},
		{"a ConfigMap without watch", Config{ConfigMap: types.NamespacedName{Namespace: "a", Name: "b"}}, "Watch is required"},
		{"a shared CA", Config{ClientCA: written(t, ca.PEM()), RequestHeaderCA: written(t, pki.Bundle(pki.NewCA("x"), ca))}, "share a certificate"},
		{"a client CA issued by the request-header CA", Config{ClientCA: written(t, middle.PEM()), RequestHeaderCA: written(t, ca.PEM())}, "issue each other"},
		{"no ConfigMap to trust", Config{TrustConfigMap: true}, "none is named"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	store(t, Config{ClientCA: written(t, ca.PEM()), RequestHeaderCA: written(t, ca.PEM()), AllowedNames: []string{"front-proxy-client"}})
}

// directories returns each directory to watch once, including those that symlinks lead through.
func TestDirectories(t *testing.T) {
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	volume := filepath.Join(dir, "..1")
	must.Do(t, errors.Join(os.Mkdir(volume, 0o700), os.Symlink("..1", filepath.Join(dir, "..data")), os.Symlink("..data/tls.crt", filepath.Join(dir, "tls.crt"))))
	write(t, volume, "tls.crt", nil)
	if got := directories(filepath.Join(dir, "tls.crt")); !slices.Equal(got, []string{dir, volume}) {
		t.Errorf("%q", got)
	}
}

// The updates of a Kubernetes volume and of files written by hand, as the kubelet and others make
// them.
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
	var kubeconfig atomic.Value
	kubeconfigPath := write(t, dir, "kubeconfig", []byte("first"))
	s := store(t, Config{
		Serving: PairSource{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")},
		Files:   []File{{Use: "kubeconfig", Path: kubeconfigPath, Take: func(b []byte) error { kubeconfig.Store(string(b)); return nil }}},
	})
	must.Run(t, s.Run)
	serves := func(cn string) func() bool {
		return func() bool {
			near, _, err := shake(t, &tls.Config{InsecureSkipVerify: true}, s.TLS())
			return err == nil && near.PeerCertificates[0].Subject.CommonName == cn && s.Status()[0].Err == ""
		}
	}
	fault := func(part string) func() bool {
		return func() bool { return strings.Contains(s.Status()[0].Err, part) }
	}
	must.Soon(t, 10*time.Second, "the first", serves("one"))

	volume("..2", issue("two"))
	link("..2", "..data")
	must.Do(t, os.RemoveAll(filepath.Join(dir, "..1")))
	must.Soon(t, 10*time.Second, "the swapped symlink", serves("two"))

	third := issue("three")
	write(t, dir, "..2/tls.key", third.KeyPEM())
	must.Soon(t, 10*time.Second, "the fault of a key before its certificate", fault("parsing key pair"))
	if !strings.Contains(s.pair.Certificate().Leaf.Subject.CommonName, "two") {
		t.Error("the last good pair is no longer served")
	}
	whole := third.CertPEM()
	write(t, dir, "..2/tls.crt", whole[:len(whole)/2])
	write(t, dir, "..2/tls.crt", whole)
	must.Soon(t, 10*time.Second, "the certificate", serves("three"))

	before := s.pair.Changed()
	must.Do(t, os.Remove(filepath.Join(dir, "tls.crt")))
	must.Soon(t, 10*time.Second, "the fault of a deleted file", fault("no such file"))
	link("..data/tls.crt", "tls.crt")
	must.Soon(t, 10*time.Second, "the recreated file", serves("three"))
	if s.pair.Changed() != before {
		t.Error("the same pair counts as a change")
	}
	link("..3", "..data")
	must.Soon(t, 10*time.Second, "the fault of a dangling link", fault("no such file"))
	volume("..3", issue("four"))
	// A new target of the link causes no event in a watched directory; replacing the link does.
	link("..3", "..data")
	must.Soon(t, 10*time.Second, "the link that leads somewhere", serves("four"))

	write(t, dir, "..3/tls.crt", nil)
	must.Soon(t, 10*time.Second, "the fault of an empty file", fault("empty"))
	write(t, dir, "kubeconfig", []byte("second"))
	must.Soon(t, 10*time.Second, "the kubeconfig", func() bool { return kubeconfig.Load() == "second" })
}

// A file that names a missing one is taken again, although it has not changed.
func TestRefusedFileIsTakenAgain(t *testing.T) {
	dir := t.TempDir()
	path, taken := write(t, dir, "config", []byte("first.crt")), ""
	write(t, dir, "first.crt", []byte("first"))
	s := store(t, Config{Files: []File{{Use: "config", Path: path, Take: func(named []byte) error {
		data, err := os.ReadFile(filepath.Join(dir, string(named)))
		if err == nil {
			taken = string(data)
		}
		return err
	}}}})
	f := s.followed[slices.IndexFunc(s.followed, func(f *followed) bool { return f.use == "config" })]
	for _, step := range []struct {
		name, file, content string
		want                string
		changed, refused    bool
	}{
		{name: "unchanged", file: "config", content: "first.crt", want: "first"},
		{name: "it names what is missing", file: "config", content: "second.crt", want: "first", changed: true, refused: true},
		{name: "that is still missing", file: "other.crt", content: "other", want: "first", refused: true},
		{name: "that is there", file: "second.crt", content: "second", want: "second", changed: true},
		{name: "nothing has changed", file: "second.crt", content: "third", want: "second"},
	} {
		write(t, dir, step.file, []byte(step.content))
		before := f.changed
		changed, err := f.load()
		if taken != step.want || changed != step.changed || (err != nil) != step.refused {
			t.Errorf("%s: took %q, changed %t, %v", step.name, taken, changed, err)
		}
		check.Same(t, step.changed && !step.refused, f.changed.After(before), "%s: put in force", step.name)
	}
}

// With only SNI pairs, no self-signed pair is served in addition.
func TestSNIAlone(t *testing.T) {
	s := store(t, Config{SNI: []PairSource{pairFiles(t, pki.NewCA("ca").Issue(pki.Leaf{CommonName: "a.test", Names: []string{"a.test"}}))}})
	for _, f := range s.followed {
		if f.source == "inline" {
			t.Errorf("%s is self-signed", f.use)
		}
	}
}
