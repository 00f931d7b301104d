package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

const (
	// fetchTimeout bounds all that a backend is asked for at a time. kube-apiserver takes seconds to merge a v2 document that has changed, so must a backend be allowed to.
	fetchTimeout = 30 * time.Second
	// maxIndex, maxDocument and maxSpec bound bodies of backends: of an index, a v3 document and a v2 document. The largest known are 150 KB, 2 MB and 5 MB, which
	// is kube-apiserver's own. maxLocalSpec bounds the local apiserver's v2 document: 20 MB with a thousand CRDs.
	maxIndex    = 4 << 20
	maxDocument = 16 << 20
	maxSpec     = 16 << 20

	maxLocalSpec = 128 << 20
)

// maxHeavy bounds how many v2 documents of backends are decoded at a time: one of 16 MB takes hundreds of megabytes for seconds, and twenty backends may have one.
const maxHeavy = 1

const typeJSON = "application/json"

// source is what is known of one backend.
type source struct {
	state atomic.Pointer[state]
}

// state is immutable.
type state struct {
	documents map[schema.GroupVersion]*document // v3
	spec      *packed                           // v2, filtered. Nil: there is none
	specTag   string                            // what the backend calls it. Empty: it must be asked for anew
	specOf    []schema.GroupVersion             // what it was filtered for
	confirmed time.Time
	err       error
}

// document is one group-version's v3 document.
type document struct {
	json       *packed
	advertised string // its place in the backend's index, which holds a hash
	// proto is made of json when somebody asks for it.
	proto func() (*packed, error)
}

func newDocument(body []byte, advertised string) *document {
	d := &document{json: pack(body), advertised: advertised}
	d.proto = sync.OnceValues(func() (*packed, error) { return convert(d.json, handler3.ToV3ProtoBinary) })
	return d
}

// convert makes another form of a document. The library was made for well-meaning servers.
func convert(from *packed, to func([]byte) ([]byte, error)) (out *packed, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fmt.Errorf("converting to protobuf: %v", p)
		}
	}()
	body, err := from.open()
	if err != nil {
		return nil, err
	}
	if body, err = to(body); err != nil {
		return nil, fmt.Errorf("converting to protobuf: %w", err)
	}
	return pack(body), nil
}

// question is one exchange with a backend.
type question struct {
	o   *OpenAPI
	do  func(context.Context, *http.Request) (*http.Response, error)
	old *state
	own []schema.GroupVersion
}

// ask asks a backend for its documents. What it cannot say now stays as it was.
func (o *OpenAPI) ask(whole context.Context, s *source, entries []*registry.Entry) error {
	ctx, cancel := context.WithTimeout(whole, fetchTimeout)
	defer cancel()
	q := question{o: o, old: s.state.Load(), do: func(ctx context.Context, r *http.Request) (*http.Response, error) {
		return o.cfg.Fetch(ctx, entries[0], r)
	}}
	for _, e := range entries {
		q.own = append(q.own, e.GroupVersion)
	}
	next := *q.old
	next.documents = make(map[schema.GroupVersion]*document)
	var err2 error
	var asking sync.WaitGroup
	asking.Go(func() { err2 = q.spec(ctx, &next) }) // it may hang, or the other may
	index, err3 := q.index(ctx)
	if err3 == nil && index != nil {
		err3 = q.documents(ctx, index, &next)
	}
	asking.Wait()
	if err3 == nil && index == nil && err2 == nil {
		err3 = q.converted(ctx, &next)
	}
	if whole.Err() != nil {
		return whole.Err() // the backend is gone: what it said no longer matters
	}
	for gv, d := range q.old.documents {
		if next.documents[gv] == nil && (err3 != nil || index == nil && err2 != nil || !slices.Contains(q.own, gv)) {
			next.documents[gv] = d
		}
	}
	next.err = errors.Join(err3, err2)
	if next.err == nil {
		next.confirmed = time.Now()
	}
	o.report(entries[0], q.old.err, next.err)
	s.state.Store(&next)
	o.touch()
	return next.err
}

// report logs when a backend's documents begin or cease to be usable.
func (o *OpenAPI) report(e *registry.Entry, was, now error) {
	o.metrics.Polled(now)
	switch {
	case now != nil && (was == nil || was.Error() != now.Error()):
		o.log.Warn("OpenAPI of backend cannot be used, what was known stays", "apiservice", e.Name, "err", now)
	case now == nil && was != nil:
		o.log.Info("OpenAPI of backend can be used again", "apiservice", e.Name)
	}
}

// index gets the v3 index. Nil: the backend has none.
func (q *question) index(ctx context.Context) (*handler3.OpenAPIV3Discovery, error) {
	a, err := documents.Get(ctx, q.do, documents.Question{Path: "/openapi/v3", Accept: typeJSON, Limit: maxIndex, Timeout: fetchTimeout})
	if err != nil {
		return nil, err
	}
	switch a.Status {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, nil
	default:
		return nil, badStatus("/openapi/v3", a.Status)
	}
	index := &handler3.OpenAPIV3Discovery{}
	if err := json.Unmarshal(a.Body, index); err != nil {
		return nil, invalid("/openapi/v3", err)
	}
	return index, nil
}

// documents gets the documents of the own group-versions that have changed.
func (q *question) documents(ctx context.Context, index *handler3.OpenAPIV3Discovery, next *state) error {
	var errs []error
	for _, gv := range q.own {
		item, ok := index.Paths[pathOf(gv)]
		if !ok {
			continue
		}
		old := q.old.documents[gv]
		if old != nil && old.advertised == item.ServerRelativeURL && strings.Contains(item.ServerRelativeURL, "hash=") {
			next.documents[gv] = old
			continue
		}
		body, err := q.document(ctx, "/openapi/v3/"+pathOf(gv))
		switch {
		case err != nil:
			errs = append(errs, err)
		case old != nil && old.json.hash == hashOf(body):
			next.documents[gv] = old
		default:
			next.documents[gv] = newDocument(body, item.ServerRelativeURL)
		}
	}
	return errors.Join(errs...)
}

func (q *question) document(ctx context.Context, path string) ([]byte, error) {
	a, err := documents.Get(ctx, q.do, documents.Question{Path: path, Accept: typeJSON, Limit: maxDocument, Timeout: fetchTimeout})
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusOK {
		return nil, badStatus(path, a.Status)
	}
	var head struct {
		OpenAPI string `json:"openapi"`
	}
	if err := json.Unmarshal(a.Body, &head); err != nil {
		return nil, invalid(path, err)
	}
	if !strings.HasPrefix(head.OpenAPI, "3.") {
		return nil, invalid(path, fmt.Errorf("%q is not OpenAPI 3", head.OpenAPI))
	}
	return a.Body, nil
}

// spec gets the v2 document, if it has changed.
func (q *question) spec(ctx context.Context, next *state) error {
	same := slices.Equal(q.old.specOf, q.own)
	ask := documents.Question{Path: "/openapi/v2", Accept: typeJSON, Limit: maxSpec, Timeout: fetchTimeout}
	if same {
		ask.ETag = q.old.specTag
	}
	a, err := documents.Get(ctx, q.do, ask)
	switch {
	case err != nil:
		return err
	case a.Status == http.StatusNotModified && ask.ETag != "":
		return nil
	case a.Status == http.StatusNotFound:
		next.spec, next.specTag, next.specOf = nil, "", q.own
		return nil
	case a.Status != http.StatusOK:
		return badStatus("/openapi/v2", a.Status)
	}
	release, err := q.o.begin(ctx)
	if err != nil {
		return err
	}
	defer release()
	sw, err := readForeign(a.Body)
	if err == nil {
		sw, err = filterRemote(sw, q.own)
	}
	var body []byte
	if err == nil {
		body, err = encode(sw)
	}
	if err != nil {
		return invalid("/openapi/v2", err)
	}
	if next.specTag, next.specOf = a.Header.Get("Etag"), q.own; next.spec == nil || next.spec.hash != hashOf(body) {
		next.spec = pack(body)
	}
	return nil
}

// begin waits for a place to decode a document in. Whoever holds one waits for nobody, so a backend that hangs holds none.
func (o *OpenAPI) begin(ctx context.Context) (release func(), err error) {
	select {
	case o.heavy <- struct{}{}:
		return func() { <-o.heavy }, nil
	case <-ctx.Done():
		return nil, &documents.Error{Reason: documents.ReasonTimeout, Err: fmt.Errorf("waiting to read /openapi/v2: %w", ctx.Err())}
	}
}

// converted makes v3 documents of the v2 document of a backend that has nothing else. Something is lost by it, as in kube-aggregator.
func (q *question) converted(ctx context.Context, next *state) error {
	if next.spec == nil {
		return nil
	}
	release, err := q.o.begin(ctx)
	if err != nil {
		return err
	}
	defer release()
	body, err := next.spec.open()
	if err != nil {
		return err
	}
	for _, gv := range q.own {
		sw, err := readSpec(body)
		if err == nil {
			sw, err = filterRemote(sw, []schema.GroupVersion{gv})
		}
		if err != nil {
			return invalid("/openapi/v2", err)
		}
		if len(sw.Paths.Paths) == 0 {
			continue
		}
		v3, err := toV3(sw)
		if err != nil {
			return invalid("/openapi/v2", err)
		}
		if old := q.old.documents[gv]; old != nil && old.json.hash == hashOf(v3) {
			next.documents[gv] = old
			continue
		}
		next.documents[gv] = newDocument(v3, "")
	}
	return nil
}

func badStatus(path string, code int) error {
	return &documents.Error{Reason: documents.ReasonStatus, Err: fmt.Errorf("getting %s: %d %s", path, code, http.StatusText(code))}
}

func invalid(path string, err error) error {
	return &documents.Error{Reason: documents.ReasonInvalid, Err: fmt.Errorf("reading %s: %w", path, err)}
}
