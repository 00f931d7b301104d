package apiservices

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// handling returns a context with what k8s.io/apiserver's handlers require: a time for their
// metrics, and an audit context that logs nothing, because Fairlead writes the audit log itself.
func handling(ctx context.Context) context.Context {
	ctx = audit.WithAuditContext(request.WithReceivedTimestamp(ctx, time.Now()))
	// Init fails if it was called before.
	_ = audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: auditinternal.LevelNone}, nil)
	return ctx
}

// flushing adds what k8s.io/apiserver requires of a writer to stream a watch: http.Flusher, which
// its own wrappers keep only together with http.CloseNotifier (pkg/endpoints/responsewriter).
// Net/http's writers have that, but most others dropped it when it was deprecated.
type flushing struct {
	http.ResponseWriter
	ctx context.Context
}

// gone is the text of the error that handlers get, and log, if they cannot write to a client.
const gone = "writing to a client of APIServices"

// ClientGone reports whether an error that k8s.io/apiserver has logged is about a client that
// disconnected before the end of its response.
func ClientGone(err error) bool { return strings.Contains(err.Error(), gone) } // some wrap only the text

// Write implements io.Writer.
func (w *flushing) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	if err != nil {
		err = fmt.Errorf(gone+": %w", err)
	}
	return n, err
}

// Flush implements http.Flusher.
func (w *flushing) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // a writer that cannot flush has nothing buffered
}

// CloseNotify implements http.CloseNotifier.
func (w *flushing) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}

// Hijack implements http.Hijacker, for a watch by WebSocket.
func (w *flushing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap supports http.ResponseController.
func (w *flushing) Unwrap() http.ResponseWriter { return w.ResponseWriter }
