package backend

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/bound"
)

// proofTime bounds a proof: as long as a review may take.
const proofTime = 10 * time.Second

// Prove asks the local apiserver for its version with a token, over the unproven pool, and returns the status. It is answered from
// memory, to everyone who is authenticated.
func (l *Local) Prove(ctx context.Context, token string, from bound.Source) (status int, err error) {
	u := l.Upstream(PoolUnproven)
	place, ok := u.Acquire(from, false)
	if !ok {
		return 0, &failure{kind: failBusy, err: errFull}
	}
	defer place.Leave()
	ctx, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	ask := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/version"}, Header: http.Header{"Authorization": {"Bearer " + token}}}
	res, err := u.RoundTrip(ask.WithContext(ctx), false)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	// Read, so that the connection is kept. More than this is not a version.
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	return res.StatusCode, err //nolint:wrapcheck // of the connection, already named
}
