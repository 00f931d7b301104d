package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// What a failed request may tell its caller. Every error of this package matches exactly one of them with errors.Is, or is the request's own context's.
var (
	// ErrBusy: as many requests as allowed are in flight or waiting. Nothing was sent. Answer 429 with Retry-After.
	ErrBusy = errors.New("backend is busy")
	// ErrUnreachable: no endpoint could be reached, or each refused the request unprocessed. Nothing was executed. Answer 503 with Retry-After.
	ErrUnreachable = errors.New("backend is unreachable")
	// ErrUnanswered: the request was sent, and the connection ended before a response head. It may have been executed, so do not invite the caller to repeat it:
	// answer 502 or 503 without Retry-After (client-go repeats writes, too, when it sees one).
	ErrUnanswered = errors.New("backend did not answer")
	// ErrBadResponse: what came back is not HTTP. Answer 502.
	ErrBadResponse = errors.New("backend sent a bad response")
)

// kind is how a try failed: it decides about another try, and labels metrics.
type kind uint8

const (
	// failDial: no connection came about (resolving, connecting, TLS, waiting for a free connection). Nothing was sent.
	failDial kind = iota
	// failBusy: too many requests wait for a connection.
	failBusy
	// failRefused: the backend says that it has not processed the request: REFUSED_STREAM (RFC 9113 §8.7), or a GOAWAY below the request's stream (§6.8).
	failRefused
	// failLost: the connection ended or was reset, or its ping stayed unanswered, after the request was sent and before a response head.
	failLost
	// failEjected: the endpoint's verdict became Unhealthy while the response was awaited.
	failEjected
	// failBad: a response came that is not HTTP.
	failBad
	// failBody: the request's own body could not be read.
	failBody
	// failContext: the caller's context ended.
	failContext
)

func (k kind) String() string {
	return [...]string{"dial", "busy", "refused", "lost", "ejected", "bad", "body", "context"}[k]
}

// failure is the error of one try.
type failure struct {
	kind    kind
	address string // empty: no endpoint was chosen
	err     error
}

func (f *failure) Error() string {
	if f.address == "" {
		return f.err.Error()
	}
	return fmt.Sprintf("forwarding to %s: %v", f.address, f.err)
}

func (f *failure) Unwrap() error { return f.err }

// Is makes a failure match the one sentinel that tells its caller what to answer.
func (f *failure) Is(target error) bool {
	switch f.kind {
	case failBusy:
		return target == ErrBusy
	case failLost, failEjected:
		return target == ErrUnanswered
	case failBad:
		return target == ErrBadResponse
	case failBody, failContext:
		return false
	default:
		return target == ErrUnreachable
	}
}

var (
	errNoEndpoint = errors.New("there is no endpoint")
	errGone       = errors.New("the endpoint is gone")
	errSwitched   = errors.New("the backend switched protocols unasked")
	errLost       = errors.New("the connection was lost")
	errFull       = errors.New("the unproven pool is full")
	errPatience   = errors.New("waiting for a connection took too long")
	errEjected    = errors.New("the endpoint is unhealthy")
)

// isConnectionError tells a connection that ended from a response that makes no sense.
func isConnectionError(err error) bool {
	for _, target := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE, os.ErrDeadlineExceeded} {
		if errors.Is(err, target) {
			return true
		}
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return err.Error() == "http: server closed idle connection" // net/http does not export it
}

// dialError says in which phase (dialResolve to dialTrust) no connection came about.
type dialError struct {
	phase int
	err   error
}

func (e *dialError) Error() string { return dialResult(e.phase) + ": " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// handshakeClasses is the number of classes that TLS errors are sorted into, for metrics.
const handshakeClasses = 9

func handshakeClass(i int) string {
	return [handshakeClasses]string{"other", "timeout", "unknown_authority", "hostname", "expired", "invalid", "alert", "not_tls", "closed"}[i]
}

// textNoProtocol is the alert of a server that speaks none of the offered protocols (RFC 7301 §3.2). crypto/tls exports neither its type nor its number.
const textNoProtocol = "tls: no application protocol"

// alertOf is what the peer complained of. Nil: it did not.
func alertOf(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return op.Err
	}
	return nil
}

func classOf(err error) int {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return 1
	case errors.As(err, &authority):
		return 2
	case errors.As(err, &hostname):
		return 3
	case errors.As(err, &invalid):
		if invalid.Reason == x509.Expired {
			return 4
		}
		return 5
	case alertOf(err) != nil:
		return 6
	case errors.As(err, &record):
		return 7
	case isConnectionError(err):
		return 8
	}
	return 0
}
