package front

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// bodyRest limits the wait for the rest of a request body after the response. net/http reads up to
// 256 KiB of it without a time limit, to reuse the connection: a client that sends a byte a minute
// would keep a goroutine busy for half a year.
const bodyRest = 5 * time.Second

// limitSlowClients sets a time limit that net/http lacks, for HTTP/1.1 clients that are slow to
// send the rest of a body. It sets none for those that are slow to read: the handler decides.
//
// It also closes the connection after every chunked body. RFC 9112 §6.1 requires that if the
// request also had a Content-Length, which net/http has dropped by now: the bytes after such a body
// may be a request that was smuggled past a proxy in front.
func limitSlowClients(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			next.ServeHTTP(w, r)
			return
		}
		if len(r.TransferEncoding) > 0 {
			w.Header().Set("Connection", "close")
		}
		b := &boundedWriter{ResponseWriter: w, control: http.NewResponseController(w)}
		_ = b.control.SetWriteDeadline(time.Time{}) // set by the previous request
		if r.Body != http.NoBody {
			// A backend may answer while it still reads the body. Without full duplex, net/http
			// would consume the rest of the body at the response head (golang/go#15527), and the
			// backend would get a shorter one. An error means that full duplex is not needed.
			_ = b.control.EnableFullDuplex()
			b.body = &trackedBody{ReadCloser: r.Body}
			own := *r // net/http keeps its own request
			own.Body = b.body
			r = &own
		}
		next.ServeHTTP(b, r)
		b.end()
	})
}

// trackedBody records whether the body was read to its end.
type trackedBody struct {
	io.ReadCloser
	ended atomic.Bool
}

func (b *trackedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { // net/http does not wrap io.EOF
		b.ended.Store(true)
	}
	return n, err //nolint:wrapcheck // io.EOF must stay unwrapped
}

// boundedWriter is a response with a time limit for its client.
type boundedWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	body     *trackedBody // nil means no body
	hijacked bool
}

// head runs before the final head. An unread rest of the body must not be parsed as the next
// request, so the connection ends with this response.
func (b *boundedWriter) head() {
	if b.body != nil && !b.body.ended.Load() {
		b.Header().Set("Connection", "close")
	}
}

// end runs after the handler: the client gets its response at once, and some time for the rest of
// its body, so that its connection is not reset while it sends.
func (b *boundedWriter) end() {
	if b.hijacked {
		return
	}
	b.head()
	if b.body == nil || b.body.ended.Load() {
		return
	}
	_ = b.control.Flush()
	_ = b.control.SetReadDeadline(time.Now().Add(bodyRest))
	_ = b.body.Close()
	_ = b.control.SetReadDeadline(time.Time{})
}

// WriteHeader is overridden for the final head. An interim head (1xx) is followed by another head.
func (b *boundedWriter) WriteHeader(code int) {
	if code >= http.StatusOK {
		b.head()
	}
	b.ResponseWriter.WriteHeader(code)
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	b.head()
	return b.ResponseWriter.Write(p)
}

// Flush is found by type assertion, FlushError by http.ResponseController.
func (b *boundedWriter) Flush() { _ = b.FlushError() }

func (b *boundedWriter) FlushError() error {
	b.head()
	return b.control.Flush() //nolint:wrapcheck // from the wrapped writer
}

func (b *boundedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	b.hijacked = true
	return b.control.Hijack() //nolint:wrapcheck // from the wrapped writer
}

func (b *boundedWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }
