package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/fairlead-proxy/fairlead/internal/bound"
)

// The errors of a failed request. Every error of this package matches exactly one of them with
// errors.Is, or bound.ErrFull (answer 429), or is the error of the request's context.
var (
	// ErrUnreachable means that no endpoint could be reached, or each refused the request
	// unprocessed. Nothing was executed. Answer 503 with Retry-After.
	ErrUnreachable = errors.New("backend is unreachable")
	// ErrUnanswered means that the request was sent and the connection ended before a response
	// head. The request may have been executed, so do not invite a retry: answer 502 or 503 without
	// Retry-After (with it, client-go repeats even writes).
	ErrUnanswered = errors.New("backend did not answer")
	// ErrBadResponse means that the response is not HTTP. Answer 502.
	ErrBadResponse = errors.New("backend sent a bad response")
)

// kind is how a try failed. It decides about retries, and labels metrics.
type kind uint8

const (
	// failDial means that there was no connection (resolving, connecting, TLS, waiting for a free
	// one). Nothing was sent.
	failDial kind = iota
	// failBusy means that too many requests wait for a connection.
	failBusy
	// failRefused means that the backend has not processed the request: REFUSED_STREAM (RFC 9113
	// §8.7), or a GOAWAY below its stream (§6.8).
	failRefused
	// failLost means that the connection ended, was reset or did not answer its ping, after the
	// request was sent and before a response head.
	failLost
	// failEjected means that the endpoint's verdict became Unhealthy while the request waited for
	// the response.
	failEjected
	// failBad means that the response is not HTTP.
	failBad
	// failBody means that the request's own body could not be read.
	failBody
	// failContext means that the caller's context ended.
	failContext
)

func (k kind) String() string {
	return [...]string{"dial", "busy", "refused", "lost", "ejected", "bad", "body", "context"}[k]
}

// failure is the error of one try.
type failure struct {
	kind    kind
	address string // empty means that no endpoint was chosen
	err     error
}

func (f *failure) Error() string {
	if f.address == "" {
		return f.err.Error()
	}
	return "forwarding to " + f.address + ": " + f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

// Is makes a failure match the one sentinel that says what to answer.
func (f *failure) Is(target error) bool {
	switch f.kind {
	case failBusy:
		return target == bound.ErrFull
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
	errNotFinal   = errors.New("the backend switched protocols unasked, or sent a status below 100")
	errLost       = errors.New("the connection was lost")
	errFull       = errors.New("the unproven pool is full")
	errPatience   = errors.New("waiting for a connection took too long")
	errEjected    = errors.New("the endpoint is unhealthy")
)

// isConnectionError distinguishes a connection that ended from a malformed response.
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

// dialError says in which phase (dialResolve to dialTrust) a dial failed.
type dialError struct {
	phase int
	err   error
}

func (e *dialError) Error() string { return dialResult(e.phase) + ": " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// handshakeClasses is the number of classes of TLS errors in metrics.
const handshakeClasses = 9

func handshakeClass(i int) string {
	return [handshakeClasses]string{"other", "timeout", "unknown_authority", "hostname", "expired", "invalid", "alert", "not_tls", "closed"}[i]
}

// textNoProtocol is the alert of a server that speaks none of the offered protocols (RFC 7301
// §3.2). crypto/tls exports neither its type nor its number.
const textNoProtocol = "tls: no application protocol"

// alertOf returns the TLS alert that the peer sent, or nil.
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
