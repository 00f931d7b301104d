package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// serveReverse runs a bare httputil.ReverseProxy: HTTP/2 on both sides, a pool of buffers, and
// nothing else. It shows what net/http costs without the duties of Fairlead.
func serveReverse(ctx context.Context, address, cert, key, backend, ca string) error {
	pool := try.Get(certutil.NewPool(ca))
	target := &url.URL{Scheme: "https", Host: backend}
	return serveTLS(ctx, address, cert, key, &httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:  &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
		BufferPool: &pooled{sync.Pool{New: func() any { return new([32 << 10]byte) }}},
		ErrorLog:   slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	})
}

type pooled struct{ sync.Pool }

func (p *pooled) Get() []byte { return p.Pool.Get().(*[32 << 10]byte)[:] } //nolint:forcetypeassert // nothing else is put there

func (p *pooled) Put(b []byte) { p.Pool.Put((*[32 << 10]byte)(b)) }
