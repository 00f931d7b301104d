package trust

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const (
	serverName = "metrics-server.kube-system.svc"
	apiService = "v1beta1.metrics.k8s.io"
)

// bench is a Trust with one APIService, driven without a registry.
type bench struct {
	*Trust
	t          *testing.T
	generation uint64
	name       string
	spec       *registry.Backend
	overlap    time.Duration
}

func newBench(t *testing.T, cfg Config) *bench {
	t.Helper()
	if cfg.Table == nil {
		cfg.Table = func() *registry.Table { return new(registry.Table) }
	}
	tr := must.Get(New(cfg))(t)
	return &bench{Trust: tr, t: t, name: apiService, overlap: time.Minute}
}

// set applies a table with this backend, as a new value like the registry's.
func (b *bench) set(edit func(*registry.Backend)) {
	next := registry.Backend{Namespace: "kube-system", Service: "metrics-server", Port: 443, ServerName: serverName}
	if b.spec != nil {
		next = *b.spec
	}
	edit(&next)
	b.spec = &next
	b.generation++
	b.apply(b.generation, []*registry.Entry{{Name: b.name, Backend: b.spec, Policy: registry.Policy{CAOverlap: b.overlap}}})
}

// bundle replaces the inline bundle.
func (b *bench) bundle(cas ...*pki.CA) {
	b.set(func(s *registry.Backend) { s.CABundle = string(pki.Bundle(cas...)) })
}

// dial performs a real handshake in memory with a server that has the pair.
func (b *bench) dial(pair *pki.Pair) error {
	b.t.Helper()
	cfg, err := b.TLS(b.name, b.spec)
	if err != nil {
		return err
	}
	return shake(b.t, cfg, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}})
}

// wants checks the reason for which a server is refused; empty: it is accepted.
func (b *bench) wants(when string, pair *pki.Pair, want string) {
	b.t.Helper()
	check.Same(b.t, want, reason(b.t, b.dial(pair)), "%s", when)
}

// buffered is an end of a net.Pipe whose writes do not block: when a client refuses a certificate,
// both sides write at once.
type buffered struct {
	net.Conn
	writes chan []byte
}

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c, writes: make(chan []byte, 64)}
	go func() {
		for p := range b.writes {
			c.Write(p)
		}
		c.Close()
	}()
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	b.writes <- bytes.Clone(p)
	return len(p), nil
}

// Close closes the connection when everything has been written or the other side has closed it.
func (b *buffered) Close() error {
	close(b.writes)
	return nil
}

// shake runs one handshake in memory and returns the client's result.
func shake(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := newBuffered(far)
		defer b.Close()
		s := tls.Server(b, server)
		if s.Handshake() == nil {
			io.Copy(io.Discard, s) // until the client closes
		}
	}()
	conn := newBuffered(near)
	err := tls.Client(conn, client).HandshakeContext(t.Context())
	conn.Close()
	<-done
	return err
}

// obsolete is a server that has no newer protocol than TLS 1.1.
func obsolete(pair *pki.Pair) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
}

// reason returns the reason for which a handshake was refused; empty: it succeeded.
func reason(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("error without reason: %v", err)
	}
	return e.Reason()
}

func lost(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func good(ca *pki.CA) *pki.Pair {
	return ca.Issue(pki.Leaf{CommonName: "metrics", Names: []string{serverName}})
}

func TestRefusals(t *testing.T) {
	day := 24 * time.Hour
	tests := []struct {
		name    string
		issue   func(ca *pki.CA) *pki.Pair
		edit    func(*registry.Backend)
		later   time.Duration
		want    string
		message string
	}{
		{name: "good", issue: good},
		{name: "good through an intermediate", issue: func(ca *pki.CA) *pki.Pair { return good(ca.Intermediate("middle")) }},
		{
			name:  "expired leaf",
			issue: func(ca *pki.CA) *pki.Pair { return good(ca) }, later: 2 * day,
			want: "ExpiredCertificate", message: `the backend's certificate "metrics" expired at 2000-01-02T00:00:00Z`,
		},
		{
			name: "leaf of tomorrow",
			issue: func(ca *pki.CA) *pki.Pair {
				return ca.Issue(pki.Leaf{Names: []string{serverName}, NotBefore: time.Now().Add(time.Hour)})
			},
			want: "NotYetValidCertificate", message: "is not valid before 2000-01-01T01:00:00Z",
		},
		{
			name: "expired CA",
			issue: func(ca *pki.CA) *pki.Pair {
				return ca.Issue(pki.Leaf{CommonName: "metrics", Names: []string{serverName}, NotAfter: time.Now().Add(90 * day)})
			},
			later: 30 * day,
			want:  "ExpiredCA", message: `the CA "backend CA" that signed the backend's certificate expired at`,
		},
		{
			name: "expired intermediate CA",
			issue: func(ca *pki.CA) *pki.Pair {
				return ca.Intermediate("middle").Issue(pki.Leaf{Names: []string{serverName}, NotAfter: time.Now().Add(90 * day)})
			},
			later: 30 * day,
			want:  "ExpiredCA", message: `the CA "middle" that signed`,
		},
		{
			name:  "no subject alternative name",
			issue: func(ca *pki.CA) *pki.Pair { return ca.Issue(pki.Leaf{CommonName: serverName}) },
			want:  "MissingSAN", message: `has no subject alternative name; it must carry "metrics-server.kube-system.svc"`,
		},
		{
			name: "wrong name",
			issue: func(ca *pki.CA) *pki.Pair {
				return ca.Issue(pki.Leaf{CommonName: "other", Names: []string{"other.kube-system.svc", "10.0.0.1"}})
			},
			want: "WrongServerName", message: `is not valid for "metrics-server.kube-system.svc", only for "other.kube-system.svc", "10.0.0.1"`,
		},
		{
			name: "SHA-1",
			issue: func(ca *pki.CA) *pki.Pair {
				return ca.Issue(pki.Leaf{CommonName: "metrics", Names: []string{serverName}, SHA1: true})
			},
			want: "InsecureSHA1", message: `the backend's certificate "metrics" is signed with SHA-1`,
		},
		{
			name:  "another CA",
			issue: func(*pki.CA) *pki.Pair { return good(pki.NewCA("stranger")) },
			want:  "UnknownAuthority", message: `"metrics" is signed by "stranger", which the bundle ("backend CA") does not hold`,
		},
		{
			name:  "another CA of the same name",
			issue: func(*pki.CA) *pki.Pair { return good(pki.NewCA("backend CA")) },
			want:  "UnknownAuthority", message: `signed by "backend CA", which`,
		},
		{
			name:  "system roots",
			issue: good, edit: func(b *registry.Backend) { b.CABundle = "" },
			want: "UnknownAuthority", message: "which the system's root store does not hold",
		},
		{
			name: "client usage only",
			issue: func(ca *pki.CA) *pki.Pair {
				return ca.Issue(pki.Leaf{Names: []string{serverName}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			},
			want: "InvalidCertificate", message: "incompatible key usage",
		},
		{name: "no PEM", issue: good, edit: func(b *registry.Backend) { b.CABundle = "hello" }, want: "InvalidCABundle", message: "the CA bundle (inline) holds no readable certificate"},
		{
			name: "PEM of nonsense", issue: good,
			edit: func(b *registry.Backend) {
				b.CABundle = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"
			},
			want: "InvalidCABundle", message: "parsing certificate 1",
		},
		{name: "no verification", issue: func(*pki.CA) *pki.Pair { return pki.NewCA("stranger").Issue(pki.Leaf{}) }, edit: func(b *registry.Backend) { b.CABundle, b.Insecure = "", true }},
		{name: "no name", issue: good, edit: func(b *registry.Backend) { b.ServerName = "" }, want: "WrongServerName", message: "no server name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Config{})
				ca := pki.NewCA("backend CA")
				b.set(func(s *registry.Backend) {
					s.CABundle = string(ca.PEM())
					if tt.edit != nil {
						tt.edit(s)
					}
				})
				pair := tt.issue(ca)
				time.Sleep(tt.later)
				err := b.dial(pair)
				if got := reason(t, err); got != tt.want {
					t.Fatalf("reason %q, want %q: %v", got, tt.want, err)
				}
				if err != nil && !strings.Contains(err.Error(), tt.message) {
					t.Errorf("message %q, want %q in it", err, tt.message)
				}
			})
		})
	}
}

// After its APIService is deleted or has become Local, a backend is no longer trusted.
func TestGone(t *testing.T) {
	for name, next := range map[string][]*registry.Entry{"deleted": nil, "local": {{Name: apiService}}} {
		t.Run(name, func(t *testing.T) {
			ca := pki.NewCA("ca")
			b := newBench(t, Config{})
			b.bundle(ca)
			open, release := b.Guard(apiService, b.spec, good(ca).Chain())
			defer release()
			was := b.backends[apiService]
			b.apply(b.generation+1, next)
			b.apply(b.generation+2, nil)
			if was.guarding() {
				t.Error("open connections to a former backend are still counted")
			}
			if !lost(open) {
				t.Error("an open connection to a former backend is still trusted")
			}
			if _, err := b.TLS(apiService, b.spec); reason(t, err) == "" {
				t.Error("a former backend is still trusted")
			}
			again, _ := b.Guard(apiService, b.spec, good(ca).Chain())
			if late := was.guard(good(ca).Chain()); !lost(again) || !lost(late.lost) {
				t.Error("a new connection to a former backend is still trusted")
			}
		})
	}
}

// TLS works before Run for what is in the table. Run follows the table and time.
func TestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := pki.NewCA("ca")
		table := registry.Build(registry.Input{Complete: true, APIServices: map[string]*apiregistrationv1.APIService{apiService: {
			ObjectMeta: metav1.ObjectMeta{Name: apiService},
			Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"},
				Group:   "metrics.k8s.io", Version: "v1beta1", CABundle: ca.PEM(),
			},
		}}}, nil)
		entry := table.Entries()[0]
		cfg := Config{Table: func() *registry.Table { return table }}
		if _, err := must.Get(New(cfg))(t).TLS(entry.Name, entry.Backend); err != nil {
			t.Errorf("before Run: %v", err)
		}
		running := must.Get(New(cfg))(t)
		must.Run(t, running.Run)
		synctest.Wait()
		check.Same(t, 2, len(running.Status()), "the local apiserver and the APIServices in the status")
		open, _ := running.Guard(entry.Name, entry.Backend, ca.Issue(pki.Leaf{Names: []string{serverName}, NotAfter: time.Now().Add(time.Minute)}).Chain())
		for _, expired := range []bool{false, true} {
			check.Same(t, expired, lost(open), "lost")
			time.Sleep(time.Minute + time.Second)
			synctest.Wait()
		}
	})
}

// Handshakes with the backend of an older table use the current trust.
func TestOldTable(t *testing.T) {
	b := newBench(t, Config{})
	b.overlap = 0
	old, next := pki.NewCA("old"), pki.NewCA("new")
	b.bundle(old)
	before := b.spec
	b.bundle(next)
	b.spec = before
	b.apply(b.generation-1, nil) // an older table comes too late
	b.wants("dialling with a superseded backend, old CA", good(old), "UnknownAuthority")
	b.wants("dialling with a superseded backend, new CA", good(next), "")
}

// A configuration never resumes a session: the second handshake sees the server's new certificate.
func TestNoResumption(t *testing.T) {
	b := newBench(t, Config{})
	ca := pki.NewCA("ca")
	b.bundle(ca)
	client := must.Get(b.TLS(apiService, b.spec))(t)
	if client.ClientSessionCache != nil {
		t.Fatal("sessions are cached")
	}
	server := &tls.Config{Certificates: []tls.Certificate{good(ca).TLS()}}
	must.Do(t, shake(t, client, server))
	server.Certificates = []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"other.svc"}}).TLS()}
	check.Same(t, "WrongServerName", reason(t, shake(t, client, server)), "second handshake")
	if shake(t, client, obsolete(good(ca))) == nil {
		t.Error("TLS 1.1 was accepted")
	}
}

func TestClientCertificate(t *testing.T) {
	proxy := pki.NewCA("front-proxy-ca").Issue(pki.Leaf{CommonName: "front-proxy-client"}).TLS()
	b := newBench(t, Config{ClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &proxy, nil }})
	ca := pki.NewCA("ca")
	b.bundle(ca)
	cfg := must.Get(b.TLS(apiService, b.spec))(t)
	var got string
	server := &tls.Config{
		Certificates: []tls.Certificate{good(ca).TLS()},
		ClientAuth:   tls.RequestClientCert,
		MaxVersion:   tls.VersionTLS12, // so that the server has seen the certificate before the client's handshake ends
		VerifyConnection: func(cs tls.ConnectionState) error {
			got = cs.PeerCertificates[0].Subject.CommonName
			return nil
		},
	}
	must.Do(t, shake(t, cfg, server))
	check.Same(t, "front-proxy-client", got, "what the backend saw")
}

func gather(t *testing.T, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families := must.Get(r.Gather())(t)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				if l.GetName() != "fingerprint" {
					key += " " + l.GetValue()
				}
			}
			out[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if counts := m.GetCounter() != nil; counts != strings.HasSuffix(f.GetName(), "_total") {
				t.Errorf("%s is a counter: %v", f.GetName(), counts)
			}
		}
	}
	return out
}
