package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

const (
	// fetchTimeout bounds all requests of one poll of a backend. kube-apiserver takes seconds to
	// merge a changed v2 document, so a backend may, too.
	fetchTimeout = 30 * time.Second
	// maxIndex, maxDocument and maxSpec bound bodies of backends: an index, a v3 document and a v2
	// document. The largest known are 150 KB, 2 MB and 5 MB, those of kube-apiserver itself.
	// maxLocalSpec bounds the local apiserver's v2 document: 20 MB with a thousand CRDs.
	maxIndex    = 4 << 20
	maxDocument = 16 << 20
	maxSpec     = 16 << 20

	maxLocalSpec = 128 << 20
)

// maxHeavy bounds how many v2 documents of backends are decoded at a time: one of 16 MB takes
// hundreds of megabytes for seconds, and twenty backends may have one.
const maxHeavy = 1

const typeJSON = "application/json"

// source holds the state of one backend.
type source = atomic.Pointer[state]

// state is the state of one backend. It is immutable.
type state struct {
	documents map[schema.GroupVersion]*document // v3
	spec      *packed                           // v2, filtered. Nil means none
	specTag   string                            // the backend's ETag. Empty makes the next request unconditional
	specOf    []schema.GroupVersion             // the group-versions it was filtered for
	// specs are the v2 documents by group-version: spec, or the last one of a group-version that
	// was not asked for with it.
	specs map[schema.GroupVersion]*packed
	// documentsAt and specsAt say when the backend last answered for a group-version.
	documentsAt, specsAt map[schema.GroupVersion]time.Time

	confirmed time.Time
	err       error
}

// document is one group-version's v3 document.
type document struct {
	json       *packed
	advertised string // its URL in the backend's index, which has a hash
	// proto returns the protobuf form, made from json on first call.
	proto func() (*packed, error)
}

func newDocument(body []byte, advertised string) *document {
	d := &document{json: pack(body), advertised: advertised}
	d.proto = sync.OnceValues(func() (*packed, error) { return convert(d.json, handler3.ToV3ProtoBinary) })
	return d
}

// convert converts a document to another form.
func convert(from *packed, to func([]byte) ([]byte, error)) (out *packed, err error) {
	defer guard("converting to protobuf", &err)
	body, err := from.open()
	if err != nil {
		return nil, err
	}
	if body, err = to(body); err != nil {
		return nil, fmt.Errorf("converting to protobuf: %w", err)
	}
	return pack(body), nil
}

// question is one poll of a backend.
type question struct {
	o   *OpenAPI
	do  documents.Do
	old *state
	own []schema.GroupVersion
}

// ask asks a backend for its documents. Those that it cannot give now stay as they were.
func (o *OpenAPI) ask(whole context.Context, known *state, entries []*registry.Entry) (next *state, changed bool, err error) {
	ctx, cancel := context.WithTimeout(whole, fetchTimeout)
	defer cancel()
	q := question{o: o, old: known, do: o.cfg.From(entries[0])}
	for _, e := range entries {
		q.own = append(q.own, e.GroupVersion)
	}
	now := *known
	now.documents = make(map[schema.GroupVersion]*document)
	var err2 error
	var asking sync.WaitGroup
	asking.Go(func() { err2 = q.spec(ctx, &now) }) // in parallel: one of the two may hang
	index, err3 := q.index(ctx)
	if err3 == nil && index != nil {
		err3 = q.documents(ctx, index, &now)
	}
	asking.Wait()
	if err3 == nil && index == nil && err2 == nil {
		err3 = q.converted(ctx, &now)
	}
	if whole.Err() != nil {
		return nil, false, whole.Err() // the backend has left the table: ignore its failures
	}
	for gv, d := range known.documents {
		if now.documents[gv] == nil && (err3 != nil || index == nil && err2 != nil || !slices.Contains(q.own, gv)) {
			now.documents[gv] = d
		}
	}
	if err3 == nil {
		now.documentsAt = q.answered(known.documentsAt)
	}
	if err2 == nil {
		now.specsAt = q.answered(known.specsAt)
	}
	now.err = errors.Join(err3, err2)
	if now.err == nil {
		now.confirmed = time.Now()
	}
	o.report(entries[0], known.err, now.err)
	return &now, !maps.Equal(now.specs, known.specs) || !maps.Equal(now.documents, known.documents), now.err
}

// answered returns the times of answers with those of now.
func (q *question) answered(at map[schema.GroupVersion]time.Time) map[schema.GroupVersion]time.Time {
	at = both(at, nil)
	for _, gv := range q.own {
		at[gv] = time.Now()
	}
	return at
}

// join returns s with the documents for which former was answered later: an APIService that comes
// back has older ones in s. The v2 document is requested anew: specOf does not have the new
// group-version.
func join(s, former *state) *state {
	next := *s
	next.documents, next.documentsAt = later(s.documents, former.documents, s.documentsAt, former.documentsAt)
	next.specs, next.specsAt = later(s.specs, former.specs, s.specsAt, former.specsAt)
	return &next
}

// later returns of each group-version the document of the later answer, and the time of that.
func later[D any](docs, former map[schema.GroupVersion]*D, at, formerAt map[schema.GroupVersion]time.Time) (map[schema.GroupVersion]*D, map[schema.GroupVersion]time.Time) {
	docs, out := both(former, docs), both(formerAt, at)
	for gv, t := range formerAt {
		if !t.After(at[gv]) {
			continue
		}
		out[gv] = t
		if delete(docs, gv); former[gv] != nil {
			docs[gv] = former[gv]
		}
	}
	return docs, out
}

// both returns a new map of two. What is in the second counts.
func both[V any](first, second map[schema.GroupVersion]V) map[schema.GroupVersion]V {
	out := make(map[schema.GroupVersion]V, len(first)+len(second))
	maps.Copy(out, first)
	maps.Copy(out, second)
	return out
}

// report logs when a backend's documents become unusable or usable.
func (o *OpenAPI) report(e *registry.Entry, was, now error) {
	switch {
	case now != nil && (was == nil || was.Error() != now.Error()):
		o.log.Warn("OpenAPI of backend cannot be used, the last good documents stay", "apiservice", e.Name, "err", now)
	case now == nil && was != nil:
		o.log.Info("OpenAPI of backend can be used again", "apiservice", e.Name)
	}
}

// index gets the v3 index. Nil means that the backend has none.
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
		return nil, a.Unexpected()
	}
	index := &handler3.OpenAPIV3Discovery{}
	if err := json.Unmarshal(a.Body, index); err != nil {
		return nil, a.Invalid(err)
	}
	return index, nil
}

// documents gets the documents of the backend's own group-versions that have changed.
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
		case old != nil && old.json.hash == negotiate.Hash(body):
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
		return nil, a.Unexpected()
	}
	var head struct {
		OpenAPI string `json:"openapi"`
	}
	if err := json.Unmarshal(a.Body, &head); err != nil {
		return nil, a.Invalid(err)
	}
	if !strings.HasPrefix(head.OpenAPI, "3.") {
		return nil, a.Invalid(fmt.Errorf("%q is not OpenAPI 3", head.OpenAPI))
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
		q.take(next, nil, "")
		return nil
	case a.Status != http.StatusOK:
		return a.Unexpected()
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
		return a.Invalid(err)
	}
	found := next.spec
	if found == nil || found.hash != negotiate.Hash(body) {
		found = pack(body)
	}
	q.take(next, found, a.Header.Get("Etag"))
	return nil
}

// take stores the v2 document, nil for none. Group-versions that were not asked for keep theirs.
func (q *question) take(next *state, found *packed, tag string) {
	next.spec, next.specTag, next.specOf = found, tag, q.own
	next.specs = both(next.specs, nil)
	for _, gv := range q.own {
		if delete(next.specs, gv); found != nil {
			next.specs[gv] = found
		}
	}
}

// begin waits until a document may be decoded. Its holder waits for nothing, so a backend that
// hangs blocks no other.
func (o *OpenAPI) begin(ctx context.Context) (release func(), err error) {
	select {
	case o.heavy <- struct{}{}:
		return func() { <-o.heavy }, nil
	case <-ctx.Done():
		return nil, &documents.Error{Reason: documents.ReasonTimeout, Err: fmt.Errorf("waiting to read /openapi/v2: %w", ctx.Err())}
	}
}

// converted makes v3 documents from v2 if the backend has no v3. This loses something, as in
// kube-aggregator.
func (q *question) converted(ctx context.Context, next *state) error {
	if next.spec == nil {
		return nil
	}
	for _, gv := range q.own {
		old := q.old.documents[gv]
		if old != nil && old.advertised == "" && next.spec == q.old.specs[gv] && q.old.err == nil {
			next.documents[gv] = old // made of the same
			continue
		}
		v3, err := q.convert(ctx, next.spec, gv)
		switch {
		case err != nil:
			return err
		case v3 == nil:
		case old != nil && old.json.hash == negotiate.Hash(v3):
			next.documents[gv] = old
		default:
			next.documents[gv] = newDocument(v3, "")
		}
	}
	return nil
}

// convert makes the v3 document of one group-version, nil if it has no paths. Between two, others
// may decode theirs.
func (q *question) convert(ctx context.Context, from *packed, gv schema.GroupVersion) ([]byte, error) {
	release, err := q.o.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	sw, err := unpackSpec(from)
	if err == nil {
		sw, err = filterRemote(sw, []schema.GroupVersion{gv})
	}
	if err != nil {
		return nil, invalid(err)
	}
	if len(sw.Paths.Paths) == 0 {
		return nil, nil
	}
	v3, err := toV3(sw)
	if err != nil {
		return nil, invalid(err)
	}
	return v3, nil
}

func invalid(err error) error {
	return &documents.Error{Reason: documents.ReasonInvalid, Err: fmt.Errorf("converting /openapi/v2: %w", err)}
}
