package trust

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
	"weak"

	"github.com/fairlead-proxy/fairlead/registry/bundle"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
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
func FuzzBundle(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Add(bytes.Repeat([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), 100))
	f.Fuzz(func(t *testing.T, data []byte) {
		certs, err := bundle.Parse(data)
		check.Same(t, false, len(certs) == 0 && err == nil, "neither certificates nor an error")
		check.Within(t, 0, 1<<10, len(fmt.Sprint(err)), "bytes of an error, which must not be too long for logs, verdicts and status")
		for i, c := range certs {
			must.Be(t, c != nil, "certificate %d is nil", i)
		}
		r := newRoots(certs)
		check.Same(t, false, len(certs) > 0 && (!r.same(newRoots(certs)) || !r.shares(r) || r.only(func(c *x509.Certificate) bool { return !r.whole.Has(sha256.Sum256(c.Raw)) }) != nil), "roots of the same certificates differ")
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
	f.Fuzz(func(t *testing.T, presented, trusted []byte) {
		chain, _ := bundle.Parse(presented)
		anchors, _ := bundle.Parse(trusted)
		for _, now := range []time.Time{time.Now(), time.Now().AddDate(50, 0, 0)} {
			got, err := (&view{name: serverName}).against(newRoots(anchors), chain, now)
			if err == nil {
				check.Same(t, false, got.root == nil || got.until.Before(now), "verified by %v until %v", got.root, got.until)
				continue
			}
			check.Same(t, false, err.Reason() == "" || len(err.Message) > maxMessage || !utf8.ValidString(err.Message) || strings.ContainsFunc(err.Message, unicode.IsControl), "reason %q message %q", err.Reason(), err.Message)
			for _, c := range chain {
				check.Same(t, true, utf8.ValidString(Describe(c).Subject), "UTF-8 is shown of the subject %q", c.RawSubject)
			}
		}
	})
}

func TestListOfNames(t *testing.T) {
	for n, want := range map[int]string{0: "", 5: `"a", "a", "a", "a", "a"`, 6: `"a", "a", "a", "a", "a" and 1 more`, 7: `"a", "a", "a", "a", "a" and 2 more`} {
		check.Same(t, want, list(slices.Repeat([]string{"a"}, n)), "%d names", n)
	}
}

// A message is one line of bounded length, whatever is in it. So is a name.
func TestBoundedText(t *testing.T) {
	for text, want := range map[string]string{
		"a\r\nb c\x7f\xff":                `a  b c\u007f\ufffd`,
		strings.Repeat("a", maxMessage-3): strings.Repeat("a", maxMessage-3),
		strings.Repeat("a", maxMessage-2): strings.Repeat("a", maxMessage-3) + "…",
		strings.Repeat("é", maxMessage):   strings.Repeat("é", (maxMessage-4)/2) + "…",
	} {
		check.Same(t, want, refuse("", nil, "%s", text).Message, "message %q", text)
	}
	for name, want := range map[string]string{
		"a\xff":                       `a\ufffd`,
		"\x1b]0;a\x07\u202e":          `\u001b]0;a\u0007\u202e`,
		strings.Repeat("a", 80):       strings.Repeat("a", 80),
		strings.Repeat("a", 81):       strings.Repeat("a", 80) + "…",
		"a" + strings.Repeat("é", 40): "a" + strings.Repeat("é", 39) + "…",
	} {
		check.Same(t, want, subject(&x509.Certificate{Subject: pkix.Name{CommonName: name}}), "name %q", name)
	}
	check.Same(t, "O=ops", subject(&x509.Certificate{Subject: pkix.Name{Organization: []string{"ops"}}}), "without a common name")
	check.Same(t, "33 parts without a common name", subject(&x509.Certificate{Subject: pkix.Name{Names: make([]pkix.AttributeTypeAndValue, maxParts+1)}}), "a long name")
	check.Same(t, "serial 7", subject(&x509.Certificate{SerialNumber: big.NewInt(7)}), "without a name")
}

// Of a peer's certificate only what is shown is kept: parsed, it may have eighty times its size.
func TestLeavesAreNotKept(t *testing.T) {
	b := New(Config{}).newBackend("v1.a")
	leaf := must.Get(x509.ParseCertificate(pki.NewCA("ca").Issue(pki.Leaf{CommonName: "leaf"}).Certificate.Raw))(t)
	kept := weak.Make(leaf)
	_ = b.handshake([]*x509.Certificate{leaf})
	runtime.GC()
	shown := b.status(time.Now()).Leaves
	check.Same(t, true, kept.Value() == nil && len(shown) == 1 && shown[0].Subject == "leaf" && shown[0].Refused, "kept besides %v: %v", shown, kept.Value() != nil)
}

// A half-written bundle is never accepted as complete, unless it ends exactly between two certificates.
func TestCutShort(t *testing.T) {
	ca := pki.NewCA("ca")
	whole := pki.Bundle(ca, pki.NewCA("second"))
	end := bytes.Index(whole, []byte("-----END CERTIFICATE-----")) + len("-----END CERTIFICATE-----")
	for n := range whole {
		certs, err := bundle.Parse(whole[:n])
		begun := bytes.Count(whole[:n], []byte("-----BEGIN CERTIFICATE-----"))
		must.Be(t, begun <= len(certs) || err != nil, "cut at %d of %d: %d certificates and no error", n, len(whole), len(certs))
		must.Be(t, n <= end || len(certs) > 0, "cut at %d of %d: the first certificate is lost", n, len(whole))
	}
	for more, want := range []string{"", "parsing 1 more certificates failed", "parsing 2 more certificates failed"} {
		_, err := bundle.Parse(bytes.Repeat([]byte("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"), bundle.Named+more))
		lines := strings.Split(err.Error(), "\n")
		got := strings.Count(err.Error(), "parsing certificate ")
		check.Same(t, true, got == bundle.Named && len(lines) == bundle.Named+min(more, 1) && strings.Contains(lines[len(lines)-1], want), "%d unreadable certificates more: %v", more, err)
	}
	check.Same(t, 2, len(must.Get(bundle.Parse(whole))(t)), "certificates of the whole")
	for n, want := range map[int]int{bundle.Max: 2, bundle.Max + 1: 0} {
		certs, err := bundle.Parse(append(bytes.Repeat([]byte("\n"), n-len(whole)), whole...))
		check.Same(t, true, len(certs) == want && (err == nil) == (want > 0), "a bundle of %d bytes, of at most %d: %d certificates, %v", n, bundle.Max, len(certs), err)
	}
}

func TestIdentity(t *testing.T) {
	ca := pki.NewCA("ca")
	again := pki.NewCA("ca")
	renewed := *ca.Certificate
	renewed.Raw = []byte("renewed")
	renewed.NotAfter = time.Now().AddDate(10, 0, 0)
	renamed := *ca.Certificate
	renamed.Raw = []byte("renamed")
	renamed.RawSubject = again.Issue(pki.Leaf{CommonName: "renamed"}).Certificate.RawSubject
	for name, tc := range map[string]struct {
		other *x509.Certificate
		same  bool
	}{"renewed": {&renewed, true}, "with another key": {again.Certificate, false}, "of another name": {&renamed, false}} {
		check.Same(t, tc.same, identify(ca.Certificate) == identify(tc.other), "the identity of a CA %s", name)
	}
	check.Same(t, fmt.Sprintf("%x", sha256.Sum256(ca.Certificate.Raw))[:32], Describe(ca.Certificate).Fingerprint, "fingerprint")
	both := newRoots([]*x509.Certificate{&renewed, again.Certificate})
	check.Same(t, true, newRoots([]*x509.Certificate{ca.Certificate}).shares(both), "a bundle with a renewed CA shares it")
	for _, isCA := range []bool{false, true} { // self-signed servers, by cert-manager or `openssl req -x509`, keep their keys
		self, next := *ca.Certificate, renewed
		self.IsCA, next.IsCA = isCA, isCA
		before := &view{current: newRoots([]*x509.Certificate{&self, again.Certificate})}
		now := time.Now()
		after := before.with(newRoots([]*x509.Certificate{&next}), nil, time.Minute, now)
		grown := after.with(newRoots([]*x509.Certificate{&next, &renamed}), nil, time.Minute, now)
		repaired := before.with(nil, refuse(reasonInvalidBundle, nil, "it is gone"), time.Minute, now).with(after.current, nil, time.Minute, now)
		for _, v := range []*view{after, grown, repaired} {
			check.Same(t, true, len(v.previous) == 1 && slices.Equal(v.previous[0].roots.certs, []*x509.Certificate{&self}), "of a renewed certificate, with %d others, the former overlaps alone: %v", len(v.current.certs)-1, v.previous)
		}
		check.Same(t, 0, len(grown.with(newRoots([]*x509.Certificate{&renamed}), nil, time.Minute, now).previous), "replaced, when both are dropped")
	}
}

// Of a CA renewed with its key, the certificate that is valid for longest is the issuer. Few of a name are tried.
func TestIssuer(t *testing.T) {
	ca := pki.NewCA("ca")
	expired := *ca.Certificate
	expired.NotAfter = time.Now().Add(-time.Hour)
	leaf := must.Get(x509.ParseCertificate(ca.Issue(pki.Leaf{}).TLS().Certificate[0]))(t)
	for _, candidates := range [][]*x509.Certificate{{&expired, ca.Certificate}, {ca.Certificate, &expired}} {
		parent, why := issuer(leaf, candidates)
		check.Same(t, true, parent == ca.Certificate, "the issuer, not %s: %q", parent.NotAfter, why)
	}
	var alike []*x509.Certificate
	for range maxChain {
		alike = append(alike, pki.NewCA("ca").Certificate)
	}
	parent, _ := issuer(leaf, append(alike, ca.Certificate))
	check.Same(t, true, parent == nil, "the issuer is found behind %d CAs of its name", maxChain)
}

// If no path ends in the bundle, the error names the CA at which the search ended.
func TestUnknownAuthority(t *testing.T) {
	now, ca, stranger := time.Now(), pki.NewCA("ca"), pki.NewCA("stranger")
	middle := stranger.Intermediate("middle").Issue(pki.Leaf{CommonName: "leaf"}).Chain()
	for _, tc := range []struct {
		name  string
		chain []*x509.Certificate
		now   time.Time
		want  string
	}{
		{"another root, which was sent", append(middle, stranger.Certificate), now, `UnknownAuthority: the backend's certificate "leaf" is signed by "stranger", which the bundle ("ca")`},
		{"another root", middle, now, `UnknownAuthority: the backend's certificate "leaf" is signed by "stranger", which the bundle ("ca")`},
		{"an expired root", ca.Issue(pki.Leaf{}).Chain(), ca.Certificate.NotAfter.Add(time.Second), `ExpiredCA: the CA "ca" that signed`},
		{"a root of tomorrow", ca.Issue(pki.Leaf{}).Chain(), ca.Certificate.NotBefore.Add(-time.Second), `NotYetValidCertificate: the CA "ca" that signed`},
	} {
		err := unknownAuthority(nil, tc.chain, newRoots([]*x509.Certificate{ca.Certificate}), tc.now)
		check.Same(t, true, strings.HasPrefix(err.Error(), tc.want), "%s: %v", tc.name, err)
	}
}

// A root's own signature may be of SHA-1.
func TestSHA1(t *testing.T) {
	for _, tc := range []struct {
		algorithm x509.SignatureAlgorithm
		issuer    string
		want      bool
	}{
		{x509.SHA1WithRSA, "other", true},
		{x509.ECDSAWithSHA1, "other", true},
		{x509.ECDSAWithSHA1, "self", false},
		{x509.SHA256WithRSA, "other", false},
	} {
		c := &x509.Certificate{SignatureAlgorithm: tc.algorithm, RawSubject: []byte("self"), RawIssuer: []byte(tc.issuer)}
		check.Same(t, tc.want, usesSHA1([]*x509.Certificate{c}), "%s by %s", tc.algorithm, tc.issuer)
	}
}

// No line is written under a mutex: while the log is blocked, all dials would be.
func TestLinesAreLoggedUnlocked(t *testing.T) {
	s := newStage(t, Config{})
	s.set("v1.a", "bundle=ca")
	b, lines := s.Trust.backends["v1.a"], 0
	s.cfg.Logger = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		lines++
		for i, mu := range []interface {
			sync.Locker
			TryLock() bool
		}{&b.mu, &s.Trust.mu} {
			if !mu.TryLock() {
				t.Errorf("mutex %d is locked: %s", i, p)
				continue
			}
			mu.Unlock()
		}
		return len(p), nil
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	err := b.handshake(s.pair("next").Chain())
	check.Same(t, true, err != nil && lines == 0, "%d lines of %v", lines, err)
	s.set("v1.a", "bundle=next")
	must.Do(t, b.handshake(s.pair("ca").Chain()))
	must.Do(t, b.handshake(s.pair("next").Chain()))
	check.Same(t, 3, lines, "lines: another bundle is loaded, the former is needed, and no more")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
