//go:build e2e

package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// attacks returns those of one source. The letters are those of the review that found them.
func attacks(t *testing.T) []attack {
	t.Helper()
	chain := longChain(t)
	second := time.Second
	var list []attack
	for _, proto := range []string{"h2", "http/1.1"} {
		list = append(list,
			// A1: unproven callers' places are taken by uploads without data.
			attack{name: "A1 uploads that send nothing", proto: proto, many: true, strike: holds("/api/v1/namespaces/x/pods")},
			attack{name: "A1 long-running uploads", proto: proto, many: true, strike: holds("/api/v1/namespaces/x/pods/y/exec")},
			attack{name: "A1 uploads to a remote", proto: proto, many: true, user: "attacker", strike: holds(remotePath)},
			attack{name: "A2 odd paths", proto: proto, every: second, strike: gets("/%61" + strings.Repeat("/", 240_000))},
			attack{name: "A2 dotted paths", proto: proto, every: second, strike: gets(remotePath + strings.Repeat("/%2e%2e/a", 26_000))},
			attack{name: "A3 long selectors", proto: proto, user: "attacker", every: second, strike: gets(remotePath + "?labelSelector=a" + strings.Repeat("%2Cb", 60_000))},
			attack{name: "A4 long chains", proto: proto, every: 2 * second, fresh: true, chain: chain, strike: gets(remotePath)},
			attack{name: "A7 names that nobody asked for", proto: proto, user: "nobody", every: second, strike: names(proto)},
		)
	}
	return append(list,
		attack{name: "A6 key updates", proto: "h2", records: true, every: 10 * time.Millisecond, strike: rekeys},
		attack{name: "A8 heads that unpack", proto: "h2", user: "attacker", every: second / 4, strike: unpacks},
	)
}

// gets requests one path again and again.
func gets(path string) func(context.Context, *striker) error {
	return func(_ context.Context, s *striker) error { return s.get(path) }
}

// holds opens uploads (200 per HTTP/2 connection, else one) and sends nothing more.
func holds(path string) func(context.Context, *striker) error {
	return func(_ context.Context, s *striker) error {
		if s.h2 == nil {
			return s.post(path)
		}
		for range 200 {
			if err := s.post(path); err != nil {
				return err
			}
		}
		return s.h2.flush()
	}
}

// names causes a new SubjectAccessReview per request: fifty a second per HTTP/2 connection, because
// sixteen times as many use a quarter of a processor in kube-apiserver.
func names(proto string) func(context.Context, *striker) error {
	return func(_ context.Context, s *striker) error {
		burst := 50
		if proto != "h2" {
			burst = 1 // answers come in sequence
		}
		for i := range burst {
			path := fmt.Sprintf("/apis/mirror.example.com/v1/namespaces/other/secrets/%d-%d", s.n, i)
			if err := s.get(path); err != nil {
				return err
			}
		}
		return nil
	}
}

// rekeys sends 32 key updates in a packet. Each causes work and has to be answered.
func rekeys(_ context.Context, s *striker) error {
	var packet []byte
	for range 32 {
		var err error
		if packet, err = s.records.AppendKeyUpdate(packet, true); err != nil {
			return err
		}
	}
	return s.records.Send(packet)
}

// unpacks sends heads of a few bytes that decode to 234 KB each.
func unpacks(_ context.Context, s *striker) error {
	if s.n == 0 { // the field to repeat
		if _, err := s.h2.ask("GET", remotePath, true, "x-large", strings.Repeat("l", 3900)); err != nil {
			return err
		}
	}
	for range 8 {
		fields := slices.Repeat([]string{"x-large", strings.Repeat("l", 3900)}, 60)
		if _, err := s.h2.ask("GET", remotePath+"/widget-001", true, fields...); err != nil {
			return err
		}
	}
	return s.h2.flush()
}

// longChain is an untrusted certificate below fifteen intermediates of one subject: a verifier
// tries every order of them.
func longChain(t *testing.T) *tls.Certificate {
	t.Helper()
	const intermediates = 15
	subject := pkix.Name{CommonName: "intermediate"}
	newKey := func() *ecdsa.PrivateKey {
		return must.Get(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))(t)
	}
	sign := func(name pkix.Name, ca bool, key, parent *ecdsa.PrivateKey) []byte {
		c := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: name, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		return must.Get(x509.CreateCertificate(rand.Reader, c, &x509.Certificate{Subject: subject}, key.Public(), parent))(t)
	}
	parent, leaf := newKey(), newKey()
	chain := &tls.Certificate{PrivateKey: leaf, Certificate: [][]byte{sign(pkix.Name{CommonName: "attacker"}, false, leaf, parent)}}
	for range intermediates {
		chain.Certificate = append(chain.Certificate, sign(subject, true, parent, parent)) // each fits at every position
	}
	return chain
}
