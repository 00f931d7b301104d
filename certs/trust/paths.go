package trust

import (
	"crypto/x509"
	"fmt"
)

const (
	// maxChain bounds the certificates that a peer may present. Real chains have two to four.
	maxChain = 16
	// maxChecks bounds the signatures of presented certificates that one verification may check. A
	// chain needs one for each intermediate; two CAs above each other that are both cross-signed
	// need six. One check takes up to 2 ms if the peer has chosen P-521 or RSA of 8192 bits, and
	// crypto/x509 alone stops only after 100.
	maxChecks = 8
)

// Bounded refuses a peer's chain, leaf first, if verifying it could cost more than a fixed bound: a
// stranger's chain is verified before its owner is known. Path building tries every presented
// certificate whose subject is the wanted issuer, so intermediates with the same subject multiply
// the work.
func Bounded(chain []*x509.Certificate) error {
	if len(chain) > maxChain {
		return fmt.Errorf("%d certificates, more than %d", len(chain), maxChain)
	}
	if len(chain) > 0 && checks(chain[0], chain[1:], 0, maxChecks) < 0 {
		return fmt.Errorf("certificates that make too many paths: more than %d signatures to check", maxChecks)
	}
	return nil
}

// checks subtracts from left the signature checks that path building above child may need, by names
// alone. It stops below zero. used has the certificates that are on the path already.
func checks(child *x509.Certificate, above []*x509.Certificate, used uint32, left int) int {
	for i, c := range above {
		if used&(1<<i) != 0 || string(c.RawSubject) != string(child.RawIssuer) {
			continue
		}
		if left--; left < 0 {
			break
		}
		if left = checks(c, above, used|1<<i, left); left < 0 {
			break
		}
	}
	return left
}
