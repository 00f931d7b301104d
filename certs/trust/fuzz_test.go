package trust

import (
	"bytes"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func seeds(f *testing.F) [][]byte {
	f.Helper()
	ca := pki.NewCA("ca")
	pair := ca.Intermediate("middle").Issue(pki.Leaf{CommonName: "leaf", Names: []string{serverName, "127.0.0.1"}})
	whole := append(pair.CertPEM(), ca.PEM()...)
	return [][]byte{
		nil,
		ca.PEM(),
		whole,
		whole[:len(whole)-40],
		append([]byte("# a comment\n"), whole...),
		append(pair.KeyPEM(), whole...),
		[]byte("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"),
		[]byte("-----BEGIN CERTIFICATE-----\nProc-Type: 4\n\naGVsbG8=\n-----END CERTIFICATE-----\n"),
		bytes.ReplaceAll(whole, []byte("\n"), []byte("\r\n")),
	}
}

// A bundle yields certificates or an error, and its certificates make usable roots.
func FuzzParseBundle(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Add(bytes.Repeat([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), 100))
	f.Fuzz(func(t *testing.T, data []byte) {
		certs, err := ParseBundle(data)
		if len(certs) == 0 && err == nil {
			t.Fatal("neither certificates nor an error")
		}
		if err != nil && len(err.Error()) > 1<<10 {
			t.Fatalf("an error of %d bytes, which is too long for logs, verdicts and status", len(err.Error()))
		}
		for i, c := range certs {
			if c == nil {
				t.Fatalf("certificate %d is nil", i)
			}
		}
		r := newRoots(certs)
		if len(certs) > 0 && (!r.same(newRoots(certs)) || !r.shares(r) || r.without(r.ids) != nil) {
			t.Fatal("roots of the same certificates differ")
		}
	})
}

// Whatever a server presents and whatever the bundle holds, the result is success or an
// explanation: one line, of bounded length.
func FuzzVerify(f *testing.F) {
	s := seeds(f)
	for _, chain := range s {
		f.Add(chain, s[1])
		f.Add(chain, s[2])
	}
	f.Fuzz(func(t *testing.T, presented, bundle []byte) {
		chain, _ := ParseBundle(presented)
		anchors, _ := ParseBundle(bundle)
		for _, now := range []time.Time{time.Now(), time.Now().AddDate(50, 0, 0)} {
			got, err := verifyChain(chain, newRoots(anchors), serverName, now)
			if err == nil {
				if got.root == nil || got.until.Before(now) {
					t.Fatalf("verified by %v until %v", got.root, got.until)
				}
				continue
			}
			if err.Reason() == "" || len(err.Message) > maxMessage || !utf8.ValidString(err.Message) || strings.ContainsAny(err.Message, "\n\r\x00") {
				t.Fatalf("reason %q message %q", err.Reason(), err.Message)
			}
			for _, c := range chain {
				if d := Describe(c); !utf8.ValidString(d.Subject) {
					t.Fatalf("subject %q", d.Subject)
				}
			}
		}
	})
}

func TestListOfNames(t *testing.T) {
	for n, want := range map[int]string{0: "", 5: `"a", "a", "a", "a", "a"`, 7: `"a", "a", "a", "a", "a" and 2 more`} {
		if got := list(slices.Repeat([]string{"a"}, n)); got != want {
			t.Errorf("%d names: %s", n, got)
		}
	}
}

// A half-written bundle is never accepted as complete, unless it ends exactly between two
// certificates.
func TestCutShort(t *testing.T) {
	ca := pki.NewCA("ca")
	whole := pki.Bundle(ca, pki.NewCA("second"))
	end := bytes.Index(whole, []byte("-----END CERTIFICATE-----")) + len("-----END CERTIFICATE-----")
	for n := range whole {
		certs, err := ParseBundle(whole[:n])
		switch begun := bytes.Count(whole[:n], []byte("-----BEGIN CERTIFICATE-----")); {
		case begun > len(certs) && err == nil:
			t.Fatalf("cut at %d of %d: %d certificates and no error", n, len(whole), len(certs))
		case n >= end+1 && len(certs) == 0:
			t.Fatalf("cut at %d of %d: the first certificate is lost", n, len(whole))
		}
	}
	for n, more := range map[int]bool{maxNamed: false, maxNamed + 2: true} {
		_, err := ParseBundle(bytes.Repeat([]byte("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"), n))
		if got := strings.Count(err.Error(), "parsing certificate "); got != maxNamed || strings.Contains(err.Error(), "parsing 2 more certificates") != more {
			t.Errorf("%d unreadable certificates: %v", n, err)
		}
	}
	if certs, err := ParseBundle(whole); len(certs) != 2 || err != nil {
		t.Fatalf("whole: %d certificates, %v", len(certs), err)
	}
	if _, err := ParseBundle(make([]byte, maxBundle+1)); err == nil {
		t.Error("a bundle above the limit is accepted")
	}
}

func TestIdentity(t *testing.T) {
	ca := pki.NewCA("ca")
	again := pki.NewCA("ca")
	if identify(ca.Certificate) == identify(again.Certificate) {
		t.Error("CAs with different keys have one identity")
	}
	renewed := *ca.Certificate
	renewed.Raw = []byte("renewed")
	renewed.NotAfter = time.Now().AddDate(10, 0, 0)
	if identify(ca.Certificate) != identify(&renewed) {
		t.Error("a renewed CA has another identity")
	}
	if !newRoots([]*x509.Certificate{ca.Certificate}).shares(newRoots([]*x509.Certificate{&renewed, again.Certificate})) {
		t.Error("a bundle with a renewed CA does not share it")
	}
}

// Of a CA that was renewed with its key, the certificate that is valid for longest is the issuer.
func TestIssuer(t *testing.T) {
	ca := pki.NewCA("ca")
	expired := *ca.Certificate
	expired.NotAfter = time.Now().Add(-time.Hour)
	leaf := must.Get(x509.ParseCertificate(ca.Issue(pki.Leaf{}).TLS().Certificate[0]))(t)
	for _, candidates := range [][]*x509.Certificate{{&expired, ca.Certificate}, {ca.Certificate, &expired}} {
		if parent, why := issuer(leaf, candidates); parent != ca.Certificate {
			t.Errorf("%v, %q", parent, why)
		}
	}
}
