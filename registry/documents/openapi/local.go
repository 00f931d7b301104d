package openapi

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

const (
	// indexEvery is the time between requests for the local apiserver's index: a few kilobytes, in
	// which every change changes a hash.
	indexEvery = 3 * time.Second
	// specEvery is the longest, and specGap the shortest time between requests for its v2 document.
	// After a change the local apiserver must merge it for us, which may take it a second of CPU,
	// so a storm of CRDs must not make it do so for each.
	specEvery = time.Minute
	specGap   = 5 * time.Second
	// specPolls are the requests after a change of the index, a minute of them: kube-apiserver's
	// two documents change one after the other, and the v2 document of a busy one came more than
	// ten seconds later. Most get a 304.
	specPolls = int(time.Minute / specGap)
)

// localState is immutable.
type localState struct {
	index     map[string]handler3.OpenAPIV3DiscoveryGroupVersion
	indexHash string
	spec      *packed // v2
	specTag   string
	pending   int // requests for spec still to send after a change of the index
	specAt    time.Time
}

// askLocal requests what may have changed, and stores it. After an error the former state stays.
func (o *OpenAPI) askLocal(ctx context.Context) error {
	last := cmp.Or(o.local.Load(), &localState{})
	next := *last
	err := o.localIndex(ctx, &next)
	if err == nil && (next.spec == nil || time.Since(next.specAt) >= specEvery || next.pending > 0 && time.Since(next.specAt) >= specGap) {
		err = o.localSpec(ctx, &next)
	}
	o.local.Store(&next)
	if next.spec != last.spec || next.indexHash != last.indexHash {
		o.sources.Touch()
	}
	return err
}

func (o *OpenAPI) localIndex(ctx context.Context, s *localState) error {
	a, err := documents.Get(ctx, o.cfg.FetchLocal, documents.Question{Path: "/openapi/v3", Accept: typeJSON, Limit: maxSpec, Timeout: fetchTimeout})
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK {
		return a.Unexpected()
	}
	hash := negotiate.Hash(a.Body)
	if hash == s.indexHash {
		return nil
	}
	index := &handler3.OpenAPIV3Discovery{}
	if err := json.Unmarshal(a.Body, index); err != nil {
		return a.Invalid(err)
	}
	s.index, s.indexHash, s.pending = index.Paths, hash, specPolls
	return nil
}

func (o *OpenAPI) localSpec(ctx context.Context, s *localState) error {
	begun := time.Now()
	a, err := documents.Get(ctx, o.cfg.FetchLocal, documents.Question{Path: "/openapi/v2", Accept: typeJSON, ETag: s.specTag, Limit: maxLocalSpec, Timeout: fetchTimeout})
	switch {
	case err != nil:
		return err
	case a.Status == http.StatusNotModified && s.specTag != "":
	case a.Status != http.StatusOK:
		return a.Unexpected()
	default:
		s.spec, s.specTag = pack(a.Body), a.Header.Get("Etag")
	}
	s.specAt, s.pending = begun, max(0, s.pending-1)
	return nil
}
