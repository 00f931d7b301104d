// Package bundle reads PEM bundles of certificates, for all alike: status, verdict and handshake say the same of one.
package bundle

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

const (
	// Max bounds a bundle. etcd refuses objects above 1.5 MiB, and a bundle of every public CA has a quarter of this.
	Max = 1 << 20
	// MaxURIs bounds those of a certificate: of an empty one's two bytes crypto/x509 makes 144. Real ones have one.
	MaxURIs = 100
	// maxRSA bounds the bits of an RSA key, as crypto/tls those of peers' ones: by one of 1 MiB a check takes a minute.
	maxRSA = 16 << 10
)

// Parse parses the certificates of a PEM bundle. Like kube-apiserver, it ignores other blocks and text between.
//
// When some blocks are unreadable it returns the readable certificates together with an error. A caller that reads a
// file must then refuse the whole: a half-written file looks like this. A caller that reads an API object, which is
// written as a whole, may use the readable part, as kube-aggregator does. Without a certificate there is an error.
func Parse(data []byte) ([]*x509.Certificate, error) {
	if len(data) > Max {
		return nil, fmt.Errorf("reading bundle: %d bytes, more than %d", len(data), Max)
	}
	// pem.Decode silently skips a broken block, so count the opening lines first, without those in comments.
	const begin = "-----BEGIN CERTIFICATE-----"
	begun := bytes.Count(data, []byte(begin)) -
		bytes.Count(data, []byte("#"+begin)) - bytes.Count(data, []byte("# "+begin))
	var certs []*x509.Certificate
	var errs []error
	blocks := 0
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		blocks++
		c, err := x509.ParseCertificate(block.Bytes)
		if err == nil && len(c.URIs) > MaxURIs {
			err = fmt.Errorf("it has more than %d URIs", MaxURIs)
		} else if err == nil {
			if key, is := c.PublicKey.(*rsa.PublicKey); is && key.N.BitLen() > maxRSA {
				err = fmt.Errorf("its RSA key has more than %d bits", maxRSA)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("parsing certificate %d: %.300v", blocks, err)) //nolint:errorlint // Named
			continue
		}
		certs = append(certs, c)
	}
	if more := len(errs) - Named; more > 0 {
		errs = append(errs[:Named], fmt.Errorf("parsing %d more certificates failed, too", more))
	}
	if broken := begun - blocks; broken > 0 {
		errs = append(errs, fmt.Errorf("reading bundle: %d of %d certificates are broken or cut short", broken, begun))
	}
	if len(certs) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("reading bundle: no PEM certificate in it"))
	}
	return certs, errors.Join(errs...)
}

// Named bounds the unreadable certificates that an error names, each by 300 characters: crypto/x509 quotes a bad URI
// twice. Who may write an APIService, or a ConfigMap that one names, could put 1 MiB into log, verdict and status.
const Named = 3

// Pool returns a pool of certificates, nil for none. As roots, nil would mean the system's.
func Pool(certs []*x509.Certificate) *x509.CertPool {
	if len(certs) == 0 {
		return nil
	}
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}
