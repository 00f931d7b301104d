package proxy

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
)

const (
	// maxUpgradeHead bounds the response head of an upgrade: net/http's own default for servers.
	maxUpgradeHead = 1 << 20
	// refusalTimeout limits the wait for each part of a response that is no 101: kube-apiserver's
	// for the whole. It cuts long lists, which the local apiserver answers whatever the Upgrade.
	refusalTimeout = 10 * time.Second
	// maxUpgradeInterims limits the 1xx responses before the final one.
	maxUpgradeInterims = 5
	// answerTime limits the wait for the response head. net/http no longer notices that a client
	// has left once that has sent a byte for the tunnel. A kubelet asks its container runtime
	// before it answers, for at most 2 minutes (--runtime-request-timeout).
	answerTime = 5 * time.Minute
	// halfOpen is how long one direction of a session may go on after the other has ended: a client
	// that has left looks like one that only sends no more. kube-apiserver ends both at once.
	halfOpen = time.Minute
)

var (
	errNoUpgrade = fmt.Errorf("switching protocols: %w", backend.ErrBadResponse)
	errLongHead  = errors.New("the head is too long")
)

// upgrade carries SPDY and WebSocket over an HTTP/1.1 connection of its own. Nothing that the
// client sends after its head reaches the backend before the backend has answered with a 101 for
// the same protocol; any other response ends both connections (CVE-2018-1002105).
func (x *exchange) upgrade(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		x.p.writeError(w, r, errTooLong)
		return
	}
	x.noteSent()
	conn, err := x.upstream.DialUpgrade(r.Context(), x.stay)
	if err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	x.ended.at(conn.Address())
	closeConn := func() { _ = conn.Close() }
	defer closeConn()
	ctx, cancel := context.WithTimeout(r.Context(), x.p.answerTime)
	stop := context.AfterFunc(ctx, closeConn)
	res, br, err := switchProtocols(conn, upgradeRequest(r, x, conn.Address())) //nolint:contextcheck // r carries it
	if !stop() && (err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded)) {
		err = ctx.Err()
	}
	cancel()
	if err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	if x.decision.rejectsOwnCredential(res.StatusCode) {
		x.forwardFailed(w, r, x.p.credentialRejected())
		return
	}
	switched := res.StatusCode == http.StatusSwitchingProtocols
	same := strings.EqualFold(res.Header.Get("Upgrade"), x.head.Upgrade) &&
		httpguts.HeaderValuesContainsToken(res.Header["Connection"], "upgrade")
	err = x.decision.clean(res.Header)
	switch {
	case err != nil:
	case switched && !same:
		err = errNoUpgrade
	case !switched && x.decision.Action == ToRemote && res.StatusCode < http.StatusBadRequest:
		// CVE-2020-8559: a remote's redirect would send the client and its credentials elsewhere.
		err = errNotSwitched(x.decision.name(), res.StatusCode)
	}
	if err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	if !switched {
		defer context.AfterFunc(r.Context(), closeConn)()
		res.Body = &refusal{res.Body, conn}
		x.relay(w, res) // after which neither connection is used
		return
	}
	res.Header.Set("Connection", "Upgrade")
	res.Header.Set("Upgrade", x.head.Upgrade)
	if limit := strangersTime(&x.decision); limit > 0 {
		defer time.AfterFunc(limit, closeConn).Stop() // ends the session
	}
	x.tunnel(w, res, conn, br)
}

// upgradeRequest returns the request for a backend at an address: one head, no body.
func upgradeRequest(r *http.Request, x *exchange, address string) *http.Request {
	out := outgoing(r, x, cmp.Or(x.decision.host(x.head), address))
	if pool := x.decision.Strip.pool; pool != authn.PoolProven && pool != authn.PoolUnproven {
		cutProtocols(out.Header)
	}
	out.Header.Set("Connection", "Upgrade")
	out.Header.Set("Upgrade", x.head.Upgrade)
	return out
}

// switchProtocols sends the head and reads the final response. The reader holds what the backend
// has sent after its head.
func switchProtocols(conn *backend.Conn, out *http.Request) (*http.Response, *bufio.Reader, error) {
	if err := out.Write(conn); err != nil {
		return nil, nil, conn.Failed(fmt.Errorf("sending upgrade request: %w", err))
	}
	limit := &io.LimitedReader{R: conn.AnswerReader(), N: maxUpgradeHead}
	br := bufio.NewReader(limit)
	for range maxUpgradeInterims {
		res, err := http.ReadResponse(br, out)
		if err != nil {
			if limit.N == 0 {
				err = errLongHead // it looks like the end of the connection
			}
			return nil, nil, conn.Failed(fmt.Errorf("reading upgrade response: %w", err))
		}
		if res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
			limit.N = 1<<63 - 1
			return res, br, nil
		}
		if res.StatusCode < http.StatusContinue {
			break // no interim head: the names of another would not be counted
		}
	}
	return nil, nil, errNoUpgrade
}

// cutProtocols removes tokens from every Sec-WebSocket-Protocol line.
func cutProtocols(header http.Header) {
	const name = "Sec-Websocket-Protocol"
	lines := header[name]
	kept := lines[:0]
	for _, line := range lines {
		if line = authn.CutProtocol(line); line != "" {
			kept = append(kept, line)
		}
	}
	if header[name] = kept; len(kept) == 0 {
		delete(header, name)
	}
}

// refusal is the body of a response that is no 101.
type refusal struct {
	io.ReadCloser
	conn net.Conn
}

func (b *refusal) Read(p []byte) (int, error) {
	_ = b.conn.SetReadDeadline(time.Now().Add(refusalTimeout)) // the Read has its error
	return b.ReadCloser.Read(p)                                //nolint:wrapcheck // io.EOF must stay unwrapped
}

// tunnel copies in both directions until both have ended or one has failed, or the second has not
// ended in time.
func (x *exchange) tunnel(w http.ResponseWriter, res *http.Response, conn net.Conn, br *bufio.Reader) {
	client, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		x.p.log.Error("taking over a client's connection", "err", err)
		panic(http.ErrAbortHandler)
	}
	over := func() {
		_ = client.Close()
		_ = conn.Close()
	}
	defer over()
	x.p.sessions.open.Add(1)
	defer x.p.sessions.open.Add(-1)
	defer context.AfterFunc(x.p.sessions.ending, over)()
	// The server's deadlines would end the session.
	if err := client.SetDeadline(time.Time{}); err != nil {
		return
	}
	res.Body = nil // the tunnel's bytes are no body
	if err := res.Write(rw); err != nil {
		return
	}
	if err := rw.Flush(); err != nil {
		return
	}
	ended := make(chan error, 2)
	go func() { ended <- pump(conn, rw, &x.ended.up) }() // ends when either connection is closed
	go func() { ended <- pump(client, br, &x.ended.down) }()
	if err := <-ended; err != nil {
		over()
	}
	defer time.AfterFunc(x.p.halfOpen, over).Stop()
	<-ended //nolint:errcheck // however it ended
}

// pump copies until the source ends. Then it closes the destination for writing; the other
// direction continues.
func pump(dst net.Conn, src io.Reader, count *int64) (err error) {
	if *count, err = io.Copy(dst, src); err != nil {
		return err
	}
	if half, ok := dst.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return dst.Close()
}
