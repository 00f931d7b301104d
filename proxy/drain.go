package proxy

import (
	"context"
	"io"
	"net/http"
)

// EndLongRunning ends every watch and log stream cleanly: its client sees the end of the body, as when kube-apiserver's own watch timeout has passed, and
// starts a new one elsewhere. Requests that are not long-running go on. It is the step of a drain after the watches' grace.
func (p *Proxy) EndLongRunning() { p.end() }

// Leave ends every HTTP/1.1 connection with its next response, from now on: HTTP/1.1 has no way to tell a client which of its requests still count, so one that
// is on its way when an idle connection is closed is lost. It is the first step of a drain; new connections are still served.
func (p *Proxy) Leave() { p.leaving.Store(true) }

// endConn tells an HTTP/1.1 client not to use its connection again. An upgrade has its connection for itself anyhow.
func (p *Proxy) endConn(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && p.leaving.Load() && r.Header.Get("Upgrade") == "" {
		w.Header().Set("Connection", "close")
	}
}

// endable makes a long-running request one that EndLongRunning ends.
func (p *Proxy) endable(r *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(p.ending, cancel) //nolint:contextcheck // what ends is the process, not the request
	return r.WithContext(ctx), func() { stop(); cancel() }
}

// endingBody turns the error that ending causes in a response body into a clean end.
type endingBody struct {
	io.ReadCloser
	ending context.Context
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.ending.Err() != nil {
		err = io.EOF
	}
	return n, err
}

func (p *Proxy) endCleanly(res *http.Response, d *Decision) {
	if d.LongRunning && res.Body != nil && res.Body != http.NoBody {
		res.Body = &endingBody{ReadCloser: res.Body, ending: p.ending}
	}
}
