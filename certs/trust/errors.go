package trust

import (
	"cmp"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"unicode"

	"github.com/fairlead-proxy/fairlead/registry"
)

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

// Error says why a backend's certificate, or the bundle that it should verify against, was refused.
// Handshakes return it as it is, so errors.As finds it.
type Error struct {
	// Message is one line for the operator: what is wrong and where, without the reason. It has
	// names from certificates, but never a dialled address.
	Message string
	// Err is the cause. Nil means that there is none beyond the message.
	Err error

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

// refuse makes an Error of one line.
func refuse(reason string, cause error, format string, args ...any) *Error {
	msg := strings.ToValidUTF8(fmt.Sprintf(format, args...), "�")
	msg = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, msg)
	if len(msg) > maxMessage {
		msg = strings.ToValidUTF8(msg[:maxMessage-3], "") + "..."
	}
	return &Error{reason: reason, Message: msg, Err: cause}
}

// subject names a certificate for an operator.
func subject(c *x509.Certificate) string {
	return cmp.Or(called(c.Subject), "serial "+clip(c.SerialNumber.String()))
}

func called(n pkix.Name) string { return clip(cmp.Or(n.CommonName, n.String())) }

// clip bounds a foreign name and makes it valid UTF-8, which a metric label must be.
func clip(s string) string {
	const n = 80 // a label is read by people
	s = strings.ToValidUTF8(s, "�")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}

// list shows the first few of many names.
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
