package backend

import (
	"context"
	"io"
	"net/http"
	"net/url"
)

// RoundTrip is Upstream.RoundTrip for a pool. The unproven pool is bounded: ErrBusy beyond it. A
// long-running request with an unproven token proves the token first, by a GET of /version, and goes
// over the proven pool: after a restart of ours every watch of the cluster comes back with a token
// that we have not seen, and must neither take a connection of its own for its whole life nor share
// one with tokens that may be bad. The caller says whether there is a token: not all that stands in
// Authorization is one, and /version answers who has none, too.
func (l *Local) RoundTrip(req *http.Request, p Pool, longRunning, token bool) (*http.Response, error) {
	u := l.Upstream(p)
	if u == nil {
		closeBody(req)
		return nil, &failure{kind: failDial, err: errNoPool}
	}
	if p == PoolUnproven && longRunning && token {
		proven, err := l.prove(req)
		if err != nil {
			closeBody(req)
			return nil, err
		}
		if proven {
			u = l.Upstream(PoolProven)
		} else {
			longRunning = false // it is about to be refused
		}
	}
	return u.roundTripWithin(req, longRunning)
}

// prove asks whether the local apiserver knows the token of req.
func (l *Local) prove(req *http.Request) (bool, error) {
	ask := (&http.Request{
		Method: http.MethodGet,
		URL:    &url.URL{Path: "/version"}, // answered from memory, to everyone who is authenticated
		Header: http.Header{"Authorization": req.Header["Authorization"]},
	}).WithContext(req.Context())
	res, err := l.Upstream(PoolUnproven).roundTripWithin(ask, false) //nolint:contextcheck // ask has it
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	// Read, so that the connection is kept. More than this is not a version.
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	return res.StatusCode != http.StatusUnauthorized, err //nolint:wrapcheck // of the connection, already named
}

// roundTripWithin is RoundTrip within the limits of u.
func (u *Upstream) roundTripWithin(req *http.Request, longRunning bool) (*http.Response, error) {
	release, ok := u.Acquire(longRunning)
	if !ok {
		closeBody(req)
		return nil, &failure{kind: failBusy, err: errFull}
	}
	res, err := u.RoundTrip(req, longRunning)
	if err != nil {
		release()
		return nil, err
	}
	res.Body = &responseBody{ReadCloser: res.Body, done: release}
	return res, nil
}

// DialUpgrade is Upstream.DialUpgrade for a pool: with the proxy client certificate for PoolCertificate, without any for the others. It counts as long-running.
func (l *Local) DialUpgrade(ctx context.Context, p Pool) (*Conn, error) {
	u := l.Upstream(p)
	if u == nil {
		return nil, &failure{kind: failDial, err: errNoPool}
	}
	release, ok := u.Acquire(true)
	if !ok {
		return nil, &failure{kind: failBusy, err: errFull}
	}
	c, f := u.dialUpgrade(ctx)
	if f != nil {
		release()
		return nil, f
	}
	c.onClose(release)
	return c, nil
}
