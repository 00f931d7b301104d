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
	"slices"
	"syscall"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// fail returns the failure of one try at an address, which may be empty: the error of a request
// over HTTP/2, too. The reason says what may have been executed, and so what to answer.
func fail(r engine.Reason, address string, err error) *engine.Failure {
	if address != "" {
		err = fmt.Errorf("forwarding to %s: %w", address, err)
	}
	return &engine.Failure{Outcome: engine.Outcome{Reason: r, Err: err}}
}

// Unreachable returns the failure of a request to a backend that is gone.
func Unreachable() *engine.Failure { return fail(engine.ReasonNoEndpoint, "", errGone) }

// over returns why a request has failed whose context has ended: its time is over, or, if its
// client is still there, this process ends it.
func over(ctx context.Context) engine.Reason {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return engine.ReasonDeadline
	}
	return engine.ReasonDrain
}

// ErrBody is to be the cause of an error of a request's own body: it is the caller's fault, not the
// backend's.
var ErrBody = errors.New("the request's body cannot be read")

var (
	errNoEndpoint = errors.New("there is no endpoint")
	errGone       = errors.New("the endpoint is gone")
	errNotFinal   = errors.New("the backend switched protocols unasked, or sent a status below 100")
	errLost       = errors.New("the connection was lost")
	errPatience   = errors.New("waiting for a connection took too long")
	errEjected    = errors.New("the endpoint is unhealthy")
)

// isConnectionError distinguishes a connection that ended from a malformed response.
func isConnectionError(err error) bool {
	ends := []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE, os.ErrDeadlineExceeded}
	return slices.ContainsFunc(ends, func(end error) bool { return errors.Is(err, end) }) || errors.As(err, new(net.Error)) ||
		err.Error() == "http: server closed idle connection" // net/http does not export it
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
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return 1
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return 2
	case errors.As(err, new(x509.HostnameError)):
		return 3
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return 4
	case errors.As(err, &invalid):
		return 5
	case alertOf(err) != nil:
		return 6
	case errors.As(err, new(tls.RecordHeaderError)):
		return 7
	case isConnectionError(err):
		return 8
	}
	return 0
}
