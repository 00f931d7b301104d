package h2_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// A front proxy that forwards everything to one backend and sets the user.
func Example() {
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s asks for %s", r.Header.Get("X-Remote-User"), r.RequestURI)
	}))
	backend.EnableHTTP2 = true
	backend.StartTLS()
	defer backend.Close()

	trust := &tls.Config{RootCAs: backend.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com", NextProtos: []string{"h2"}}
	dial := func(ctx context.Context, ep *engine.Endpoint) (*tls.Conn, func(), error) {
		raw, err := new(net.Dialer).DialContext(ctx, "tcp", ep.Name)
		if err != nil {
			return nil, nil, err
		}
		conn := tls.Client(h2.Wrap(raw), trust)
		return conn, func() {}, conn.HandshakeContext(ctx)
	}
	endpoint := &engine.Endpoint{Name: backend.Listener.Addr().String(), Release: func() {}, Failed: func(error, bool) {}, Told: func(*engine.GoAway) {}}
	upstream := &engine.Upstream{Pick: func(any, []*engine.Endpoint) *engine.Endpoint { return endpoint }, Retried: func(engine.Reason) {}}
	server := h2.New(h2.Config{Dial: dial, Decide: func(_ *h2.ConnInfo, h *wire.Head, _ func(engine.Plan)) (engine.Plan, bool) {
		return engine.Plan{
			Forward: upstream,
			Set:     []hpack.HeaderField{{Name: "x-remote-user", Value: "jane"}}, // replaces what the client sent
			Retries: 2, Again: h.Method == http.MethodGet,
		}, true
	}})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()

	front := httptest.NewUnstartedServer(http.NotFoundHandler()) // answers HTTP/1.1
	front.Listener = wrapping{front.Listener}
	front.EnableHTTP2 = true
	front.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": func(_ *http.Server, c *tls.Conn, _ http.Handler) { server.Serve(ctx, c) }}
	front.StartTLS()
	defer front.Close()

	res, err := front.Client().Get(front.URL + "/greeting?loud")
	if err != nil {
		fmt.Println(err)
		return
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	fmt.Println(res.Proto, res.StatusCode, string(body), err)

	err = server.Shutdown(ctx, 0) // sends GOAWAY to the clients
	cancel()
	fmt.Println(err, <-ended)
	// Output:
	// HTTP/2.0 200 jane asks for /greeting?loud <nil>
	// <nil> <nil>
}

// wrapping is a listener for an h2.Server.
type wrapping struct{ net.Listener }

func (l wrapping) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		c = h2.Wrap(c)
	}
	return c, err
}
