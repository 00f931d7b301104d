package backend

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/bound"
)

// proofTime limits a proof, like a review.
const proofTime = 10 * time.Second

// Prove requests /version from the local apiserver with a token, over the unproven pool, and
// returns the status. kube-apiserver answers it from memory, for every authenticated user.
func (l *Local) Prove(ctx context.Context, token string, from bound.Source, by *Stay) (status int, err error) {
	u := l.Upstream(PoolUnproven)
	place, ok := u.Acquire(from, false)
	if !ok {
		return 0, &failure{kind: failBusy, err: errFull}
	}
	defer place.Leave()
	ctx, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	ask := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/version"}, Header: http.Header{"Authorization": {"Bearer " + token}}}
	res, err := u.RoundTrip(ask.WithContext(ctx), false, by)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	// Read the body, so that the connection is kept. A version is never longer than this.
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	return res.StatusCode, err //nolint:wrapcheck // an error of the connection, which names it
}
