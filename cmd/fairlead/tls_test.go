package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Both ports refuse TLS below 1.2, and the suites without forward secrecy or with MACs over CBC's
// padding, though the key pair fits all of them (RSA).
func TestVersionsAndSuites(t *testing.T) {
	key := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	cert := must.Get(x509.CreateCertificate(rand.Reader, leaf, leaf, key.Public(), key))(t)
	dir := t.TempDir()
	files := []string{
		"--tls-cert-file=" + writeFile(t, filepath.Join(dir, "crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))),
		"--tls-private-key-file=" + writeFile(t, filepath.Join(dir, "key"), string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))),
	}
	usual := aloneDoor(t, files...)
	strict := aloneDoor(t, append(files, "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384")...)
	latest := aloneDoor(t, append(files, "--tls-min-version=VersionTLS13")...)
	quantum := aloneDoor(t, append(files, "--tls-curve-preferences=4588")...)
	for _, d := range []*server{usual, strict, latest, quantum} {
		d.start(t)
	}
	for _, tt := range []struct {
		name    string
		door    *server
		version uint16
		suite   uint16 // 0: all that the client knows
		ok      bool
	}{
		{"1.0", usual, tls.VersionTLS10, 0, false},
		{"1.1", usual, tls.VersionTLS11, 0, false},
		{"key exchange by RSA", usual, tls.VersionTLS12, tls.TLS_RSA_WITH_AES_128_GCM_SHA256, false},
		{"key exchange by RSA, CBC", usual, tls.VersionTLS12, tls.TLS_RSA_WITH_AES_256_CBC_SHA, false},
		{"CBC with SHA-256", usual, tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256, false},
		{"3DES", usual, tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA, false},
		{"RC4", usual, tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_RC4_128_SHA, false},
		{"GCM", usual, tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, true},
		{"ChaCha20", usual, tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, true},
		{"1.3", usual, tls.VersionTLS13, 0, true},
		{"the listed suite", strict, tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, true},
		{"another suite", strict, tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, false},
		{"1.2, above which the minimum is", latest, tls.VersionTLS12, 0, false},
		{"1.3, the minimum", latest, tls.VersionTLS13, 0, true},
		{"X25519, which is not listed", quantum, tls.VersionTLS13, 0, false},
	} {
		cfg := &tls.Config{InsecureSkipVerify: true, MinVersion: tt.version, MaxVersion: tt.version}
		if tt.version == tls.VersionTLS13 {
			cfg.CurvePreferences = []tls.CurveID{tls.X25519}
		}
		if tt.suite != 0 {
			cfg.CipherSuites = []uint16{tt.suite}
		}
		for port, address := range map[string]string{"secure": tt.door.ports.front.Addr().String(), "admin": tt.door.ports.admin.Addr().String()} {
			conn, err := tls.Dial("tcp", address, cfg)
			if (err == nil) != tt.ok || err != nil && !strings.Contains(err.Error(), "remote error: ") {
				t.Errorf("%s at the %s port: %v, want an alert of the door, or none", tt.name, port, err)
			}
			if err == nil {
				_ = conn.Close()
			}
		}
	}
	conn := must.Get(tls.Dial("tcp", quantum.ports.front.Addr().String(), &tls.Config{InsecureSkipVerify: true}))(t)
	check.Same(t, tls.X25519MLKEM768, conn.ConnectionState().CurveID, "the key exchange that is listed")
	must.Do(t, conn.Close())
}

// The proxy client certificate is verified as the cluster's servers do, but not with every look of the checks.
func TestProxyClientIsVerifiedSeldom(t *testing.T) {
	d, now := aloneDoor(t), time.Now()
	check.Fault(t, "", d.distrusted(now), "a certificate that no cluster judges")
	d.certs.ProxyClient().Set(&tls.Certificate{Certificate: [][]byte{{1}}})
	check.Fault(t, "", d.distrusted(now.Add(9*time.Second)), "a look soon afterwards")
	check.Fault(t, "malformed", d.distrusted(now.Add(10*time.Second)), "a later one")
}
