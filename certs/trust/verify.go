package trust

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

type verified struct {
	root  *x509.Certificate // the anchor that the best path, which lasts longest, ends in
	first *x509.Certificate // of that path, which ends first
	until time.Time         // when it does. Zero: not verified (insecure)
}

// against verifies the chain of a server, leaf first, against r and the view's name, or one of several comma-separated
// names. A nil error means that all of it is valid at now.
func (v *view) against(r *roots, chain []*x509.Certificate, now time.Time) (verified, *Error) {
	if v.name == "" && !v.anyName {
		// In crypto/x509 an empty name would mean any.
		return verified{}, refuse(reasonWrongName, nil, "there is no server name to verify")
	}
	if len(chain) == 0 {
		return verified{}, refuse(reasonInvalidCertificate, nil, "the server presented no certificate")
	}
	if err := Bounded(chain); err != nil {
		return verified{}, refuse(reasonInvalidCertificate, nil, "the server presented %v", err)
	}
	opts := x509.VerifyOptions{
		DNSName: matchingName(v.name, chain[0]), Roots: r.pool, Intermediates: bundle.Pool(chain[1:]), CurrentTime: now,
	}
	paths, err := chain[0].Verify(opts)
	if err != nil {
		return verified{}, classify(err, chain, r, v.name, now)
	}
	var best verified
	for _, path := range paths {
		first := slices.MinFunc(path, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if first.NotAfter.After(best.until) {
			best = verified{root: path[len(path)-1], first: first, until: first.NotAfter}
		}
	}
	return best, nil
}

// matchingName returns the one of several names that a certificate is valid for. If there is none,
// it returns a name that no certificate has: crypto/x509 would take the comma-separated list for a
// single name, and names in a certificate are ASCII (RFC 5280 section 4.2.1.6).
func matchingName(names string, leaf *x509.Certificate) string {
	for name := range strings.SplitSeq(names, ",") {
		if leaf.VerifyHostname(name) == nil {
			return name
		}
	}
	return strings.ReplaceAll(names, ",", "…")
}

func classify(err error, chain []*x509.Certificate, r *roots, name string, now time.Time) *Error {
	leaf := chain[0]
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return outOfDate(err, leaf, invalid.Cert, now)
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return wrongName(err, leaf, name)
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return unknownAuthority(err, chain, r, now)
	}
	return refuse(reasonInvalidCertificate, err, "the backend's certificate %q is not usable: %v", subject(leaf), err)
}

// outOfDate returns the error for a certificate outside its validity: the leaf or a CA above it.
func outOfDate(err error, leaf, c *x509.Certificate, now time.Time) *Error {
	what, reason := fmt.Sprintf("the backend's certificate %q", subject(leaf)), reasonExpiredCertificate
	if !c.Equal(leaf) {
		what, reason = fmt.Sprintf("the CA %q that signed the backend's certificate", subject(c)), reasonExpiredCA
	}
	if now.Before(c.NotBefore) {
		return refuse(reasonNotYetValid, err, "%s is not valid before %s", what, stamp(c.NotBefore))
	}
	return refuse(reason, err, "%s expired at %s", what, stamp(c.NotAfter))
}

// wrongName returns the error for a certificate of another name, or without any: Go no longer reads the common name.
func wrongName(err error, leaf *x509.Certificate, name string) *Error {
	if !hasSAN(leaf) {
		return refuse(reasonMissingSAN, err, "the backend's certificate %q has no subject alternative name; "+
			"it must carry %q (the common name is not read)", subject(leaf), name)
	}
	names := append([]string{}, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	return refuse(reasonWrongName, err, "the backend's certificate %q is not valid for %q, only for %s",
		subject(leaf), name, list(names))
}

// unknownAuthority finds out why no path was accepted: crypto/x509 does not report those it tried.
func unknownAuthority(err error, chain []*x509.Certificate, r *roots, now time.Time) *Error {
	candidates := append(append([]*x509.Certificate{}, r.certs...), chain[1:]...)
	child := chain[0]
	for range maxChain { // CAs may have signed each other
		parent, reason := issuer(child, candidates)
		if parent == nil && reason == reasonInsecureSHA1 {
			return refuse(reasonInsecureSHA1, err,
				"the backend's certificate %q is signed with SHA-1, which is not secure", subject(child))
		}
		if parent == nil || parent.Equal(child) {
			break
		}
		if now.After(parent.NotAfter) || now.Before(parent.NotBefore) {
			return outOfDate(err, chain[0], parent, now)
		}
		child = parent
	}
	return refuse(reasonUnknownAuthority, err, "the backend's certificate %q is signed by %q, which %s does not hold",
		subject(chain[0]), called(child.Issuer), r)
}

// issuer finds who signed child, preferably a certificate in date: an expired CA is reported only if there is no other.
func issuer(child *x509.Certificate, candidates []*x509.Certificate) (parent *x509.Certificate, reason string) {
	alike := 0 // of one name a bundle has room for thousands, each of which may have signed another
	for _, c := range candidates {
		if string(c.RawSubject) != string(child.RawIssuer) || alike == maxChain {
			continue
		}
		alike++
		err := child.CheckSignatureFrom(c)
		switch algo, insecure := errors.AsType[x509.InsecureAlgorithmError](err); {
		case err == nil && (parent == nil || c.NotAfter.After(parent.NotAfter)):
			parent = c
		case insecure && isSHA1(x509.SignatureAlgorithm(algo)):
			reason = reasonInsecureSHA1
		}
	}
	return parent, reason
}

// Path returns a leaf and the CAs above it that were sent with it: of several for one, the one that lasts longest. It
// has no root: who verifies has that.
func Path(chain []*x509.Certificate) []*x509.Certificate {
	path := slices.Clone(chain[:min(len(chain), 1)])
	for range chain[len(path):] {
		above, _ := issuer(path[len(path)-1], chain[1:])
		if above == nil || string(above.RawIssuer) == string(above.RawSubject) {
			break
		}
		path = append(path, above)
	}
	return path
}

func (r *roots) String() string {
	if r.system() {
		return "the system's root store"
	}
	return "the bundle (" + Subjects(r.certs) + ")"
}

// Subjects names certificates, as many as fit a line.
func Subjects(certs []*x509.Certificate) string {
	names := make([]string, 0, len(certs))
	for _, c := range certs {
		names = append(names, subject(c))
	}
	return list(names)
}

// hasSAN reports whether c has RFC 5280's extension (4.2.1.6), even without names, as upstream.
func hasSAN(c *x509.Certificate) bool {
	return slices.ContainsFunc(c.Extensions, func(e pkix.Extension) bool {
		return e.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 17})
	})
}

// usesSHA1 reports whether a certificate that is not self-signed, as a root is, has a SHA-1 signature.
func usesSHA1(chain []*x509.Certificate) bool {
	return slices.ContainsFunc(chain, func(c *x509.Certificate) bool {
		return isSHA1(c.SignatureAlgorithm) && string(c.RawIssuer) != string(c.RawSubject)
	})
}

func isSHA1(a x509.SignatureAlgorithm) bool { return a == x509.SHA1WithRSA || a == x509.ECDSAWithSHA1 }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// VerifyChain verifies the chain that a server presented, leaf first, as a handshake now would: against a bundle (empty
// means the system's roots) and the name. It returns the root that the chain ends in.
func VerifyChain(data []byte, serverName string, chain []*x509.Certificate) (root *x509.Certificate, refusal *Error) {
	v := readRoots(data, "")
	v.name = serverName
	got, _, refusal := v.verify(chain, time.Now())
	return got.root, refusal
}

const (
	// maxChain bounds the certificates that a peer presents, maxSize a server's. Real chains have two to four: 12 KB.
	maxChain, maxSize = 16, 64 << 10
	// maxChecks bounds the signatures of presented certificates that one verification may check. A chain needs one for
	// each intermediate; two CAs above each other that are both cross-signed need six. One check takes up to 2 ms if
	// the peer has chosen P-521 or RSA of 8192 bits, and crypto/x509 alone stops only after 100.
	maxChecks = 8
)

// Light refuses a peer's certificates above most bytes, or that become far more, for as long as its connection is open.
func Light(chain []*x509.Certificate, most int) error {
	n, size := 0, 0
	for _, c := range chain {
		if n, size = n+len(c.URIs), size+len(c.Raw); n > bundle.MaxURIs || size > most {
			return fmt.Errorf("more than %d URIs in certificates, or %d bytes", bundle.MaxURIs, most)
		}
	}
	return nil
}

// Bounded refuses a peer's chain, leaf first, if verifying it could cost more than a fixed bound: a stranger's chain is
// verified before its owner is known. Path building tries every presented certificate whose subject is the wanted
// issuer, so intermediates with the same subject multiply the work.
func Bounded(chain []*x509.Certificate) error {
	if len(chain) > maxChain {
		return fmt.Errorf("%d certificates, more than %d", len(chain), maxChain)
	}
	if len(chain) > 0 && checks(chain[:1], chain[1:], maxChecks) < 0 {
		return fmt.Errorf("certificates that make too many paths: more than %d signatures to check", maxChecks)
	}
	return nil
}

// checks subtracts from left the signature checks that path building above path may need, by names alone. It stops
// below zero. As in crypto/x509 a pool keeps one of equal certificates, and a path has a subject with its key once.
func checks(path, above []*x509.Certificate, left int) int {
	for i, c := range above {
		same := func(o *x509.Certificate) bool {
			return o.Equal(c) || string(o.RawSubject) == string(c.RawSubject) &&
				string(o.RawSubjectPublicKeyInfo) == string(c.RawSubjectPublicKeyInfo) && !hasSAN(o) && !hasSAN(c)
		}
		if left >= 0 && string(c.RawSubject) == string(path[len(path)-1].RawIssuer) &&
			!slices.ContainsFunc(path, same) && !slices.ContainsFunc(above[:i], c.Equal) {
			left = checks(append(slices.Clip(path), c), above, left-1)
		}
	}
	return left
}

// The reasons of an Error. They appear in verdicts, so an operator can search for each.
const (
	reasonInvalidBundle      = registry.ReasonInvalidCABundle
	reasonExpiredCA          = "ExpiredCA"
	reasonExpiredCertificate = "ExpiredCertificate"
	reasonNotYetValid        = "NotYetValidCertificate"
	reasonMissingSAN         = "MissingSAN"
	reasonInsecureSHA1       = "InsecureSHA1"
	reasonWrongName          = "WrongServerName"
	reasonUnknownAuthority   = "UnknownAuthority"
	reasonInvalidCertificate = "InvalidCertificate"
)

// maxMessage bounds a message: names in it come from an unverified certificate. A condition's
// message may have 32 KiB; half a KiB is still readable.
const maxMessage = 512

// Error says why a backend's certificate or bundle was refused. Handshakes return it as it is, so errors.As finds it.
type Error struct {
	// Message is one line for the operator: what is wrong and where, without the reason. It has
	// names from certificates, but never a dialled address.
	Message string
	Err     error // the cause. Nil means that there is none beyond the message

	reason string
}

// Error returns the reason and the message: except for InvalidCABundle a condition has only
// kube-aggregator's own reasons, so the text must have ours.
func (e *Error) Error() string {
	if e.reason == reasonInvalidBundle {
		return e.Message
	}
	return e.reason + ": " + e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Reason returns the reason for the verdict: InvalidCABundle, ExpiredCA, ExpiredCertificate,
// NotYetValidCertificate, MissingSAN, InsecureSHA1, WrongServerName, UnknownAuthority or
// InvalidCertificate. It is a method for packages that may not import this one.
func (e *Error) Reason() string { return e.reason }

func refuse(reason string, cause error, format string, args ...any) *Error {
	text := printable.Cut(printable.Line(fmt.Sprintf(format, args...)), maxMessage-len("…"))
	return &Error{reason: reason, Message: text, Err: cause}
}

func subject(c *x509.Certificate) string {
	if name := called(c.Subject); name != "" {
		return name
	}
	return "serial " + clip(c.SerialNumber.Text(16)) // in proportion to its length, which a decimal is not
}

// maxParts bounds the parts of a name that are shown. Its String takes the square of their number, which is a peer's.
const maxParts = 32

func called(n pkix.Name) string {
	switch {
	case n.CommonName != "":
		return clip(n.CommonName)
	case len(n.Names) > maxParts:
		return fmt.Sprintf("%d parts without a common name", len(n.Names))
	}
	return clip(n.String())
}

// clip bounds a foreign name and makes it printable: people read it as a label of /metrics, too, which is UTF-8.
func clip(s string) string { return printable.Cut(printable.Line(s), 80) }

func list(names []string) string {
	const shown = 5 // the message still fits a line of a terminal
	quoted := make([]string, 0, shown)
	for _, n := range names[:min(len(names), shown)] {
		quoted = append(quoted, fmt.Sprintf("%q", clip(n)))
	}
	s := strings.Join(quoted, ", ")
	if len(names) > shown {
		s += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return s
}
