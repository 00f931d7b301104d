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
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

const (
	// fetchTimeout bounds all requests of one poll of a backend, which may take seconds to merge a changed v2 document.
	fetchTimeout = 30 * time.Second
	// maxIndex, maxDocument and maxSpec bound bodies of backends: an index, whose paths are kept and so have a bound of
	// their own, a v3 and a v2 document. The largest known are 150 KB, 2 MB and 5 MB, those of kube-apiserver itself.
	// maxLocalSpec bounds the local apiserver's v2 document: 20 MB with a thousand CRDs.
	maxIndex    = 4 << 20
	maxPaths    = 10_000
	maxDocument = 16 << 20
	maxSpec     = 16 << 20

	maxLocalSpec = 128 << 20
)

// maxHeavy bounds how many v2 documents of backends are decoded at a time: one of 16 MB takes
// hundreds of megabytes for seconds, and twenty backends may have one.
const maxHeavy = 1

const typeJSON = "application/json"

type source = atomic.Pointer[state]

// state is the state of one backend. It is immutable.
type state struct {
	versions  map[schema.GroupVersion]version
	claims    claims
	confirmed time.Time
	err       error
	rested    time.Time // when the backend may be asked again: its documents may have been costly
}

// version is what a backend has said about one group-version, kept while it is not asked for that, or fails.
type version struct {
	v3  *document // nil means none
	v2  *packed   // the document of all group-versions that were asked for together. Nil means none
	tag string    // the ETag of v2. Empty makes the next request unconditional
	at  time.Time // when the backend last answered for one of the two
}

func (s *state) next() *state {
	next := *s
	next.versions = maps.Collect(maps.All(s.versions))
	return &next
}

// document is one group-version's v3 document, or the merged v2 document.
type document struct {
	json  *packed
	proto func() (*packed, error) // returns the protobuf form, made from json on first call
	of    []*document             // of several servers, whose union it is. Nil means of one
	// union is the last one that began with it. Nil means that the document is none of a backend.
	union *atomic.Pointer[document]
}

// newDocument returns the document with this body: old, if that has it. Its protobuf form may take
// as much memory as a decoded v2 document, so it waits for the same place, for seconds at most.
func (o *OpenAPI) newDocument(gv schema.GroupVersion, old *document, body []byte) *document {
	if old != nil && old.json.hash == negotiate.Hash(body) {
		return old
	}
	d := &document{json: pack(body), union: new(atomic.Pointer[document])}
	d.proto = sync.OnceValues(func() (*packed, error) {
		o.heavy <- struct{}{}
		defer func() { <-o.heavy }()
		p, err := convert(d.json, handler3.ToV3ProtoBinary)
		if err != nil {
			o.log.Warn("OpenAPI of backend has no protobuf form", "groupVersion", gv, "err", err)
		}
		return p, err
	})
	return d
}

func convert(from *packed, to func([]byte) ([]byte, error)) (out *packed, err error) {
	defer guard("converting to protobuf", &err)
	body, err := to(from.open())
	if err != nil {
		return nil, documents.Answer{Path: "document for its protobuf form"}.Invalid(fmt.Errorf("converting: %w", err))
	}
	return pack(body), nil
}

type question struct {
	o      *OpenAPI
	do     documents.Do
	own    []schema.GroupVersion
	known  *state
	now    []version // by index in own
	claims claims
	busy   atomic.Int64 // nanoseconds with documents that were decoded, or compressed
}

// question begins a poll: the v2 documents stay until there are others.
func (o *OpenAPI) question(do documents.Do, known *state, own ...schema.GroupVersion) *question {
	q := &question{o: o, do: do, own: own, known: known, now: make([]version, len(own)), claims: known.claims}
	for i, gv := range own {
		q.now[i] = known.versions[gv]
		q.now[i].v3 = nil
	}
	return q
}

// ask asks a backend for its documents. Those that it cannot give now stay as they were.
func (o *OpenAPI) ask(whole context.Context, known *state,
	entries []*registry.Entry) (next *state, changed bool, err error) {
	// It is asked after each recovery, and may recover every second.
	if !latest.Sleep(whole, min(time.Until(known.rested), mostRest)) {
		return nil, false, whole.Err()
	}
	ctx, cancel := context.WithTimeout(whole, fetchTimeout)
	defer cancel()
	var own []schema.GroupVersion
	for _, e := range entries {
		own = append(own, e.GroupVersion)
	}
	q := o.question(o.cfg.From(entries[0]), known, own...)
	var err2 error
	var asking sync.WaitGroup
	asking.Go(func() { err2 = q.spec(ctx) }) // in parallel: one of the two may hang
	indexed, err3 := q.index(ctx)
	asking.Wait()
	if err3 == nil && !indexed && err2 == nil {
		err3 = q.converted(ctx)
	}
	next = known.next()
	t := o.cfg.Tables.Table() // of what has left it, nothing is kept
	maps.DeleteFunc(next.versions, func(gv schema.GroupVersion, _ version) bool { return t.Entry(gv) == nil })
	next.claims, changed = q.claims, !slices.Equal(q.claims.paths(), known.claims.paths())
	if !slices.Equal(q.claims.foreign, known.claims.foreign) {
		o.log.Warn("other servers' group-versions in the OpenAPI index of backend, which stay the others', are now",
			"apiservice", entries[0].Name, "groupVersions", q.claims.foreign)
	}
	for i, gv := range own {
		old, now := known.versions[gv], q.now[i]
		if now.v3 == nil && (err3 != nil || !indexed && err2 != nil) {
			now.v3 = old.v3
		}
		if err2 == nil || err3 == nil {
			now.at = time.Now()
		}
		changed = changed || now.v2 != old.v2 || now.v3 != old.v3
		next.versions[gv] = now
	}
	if next.err = errors.Join(err3, err2); next.err == nil {
		next.confirmed = time.Now()
	}
	next.rested = time.Now().Add(restFactor * time.Duration(q.busy.Load()))
	return next, changed, next.err
}

// join returns s with the documents for which former was answered later: an APIService that comes
// back has older ones in s. The v2 document of these is requested anew, for all together.
func join(s, former *state) *state {
	next := s.next()
	for gv, was := range former.versions {
		if was.at.After(s.versions[gv].at) {
			was.tag = ""
			next.versions[gv] = was
		}
	}
	return next
}

// index gets the v3 index, and what it names. It reports whether the backend has one.
func (q *question) index(ctx context.Context) (found bool, err error) {
	ask := documents.Question{Path: "/openapi/v3", Accept: typeJSON, Limit: maxIndex, Timeout: fetchTimeout}
	a, err := documents.Get(ctx, q.do, ask)
	switch failure, is := errors.AsType[*documents.Error](err); {
	case is && failure.Reason == documents.ReasonTooLarge:
		q.claim(everything)
		return false, err
	case err != nil:
		return false, err
	case a.Status == http.StatusOK:
	case a.Status == http.StatusNotFound:
		q.claim()
		return false, nil
	default:
		return false, a.Unexpected()
	}
	index := &handler3.OpenAPIV3Discovery{}
	if err = a.Bounded(maxPaths, maxPaths); err != nil {
		q.claim(everything)
	} else if err = json.Unmarshal(a.Body, index); err == nil {
		q.claim(slices.Sorted(maps.Keys(index.Paths))...)
		return true, q.documents(ctx, index)
	}
	return false, a.Invalid(err)
}

func (q *question) documents(ctx context.Context, index *handler3.OpenAPIV3Discovery) error {
	var errs []error
	for i, gv := range q.own {
		item, ok := index.Paths[pathOf(gv)]
		if !ok {
			continue
		}
		old := q.known.versions[gv].v3
		// During a rollout, one endpoint may advertise what another one does not have yet. So the
		// hash must be that of the document that came, as it is in kube-openapi's URLs.
		if old != nil && strings.Contains(item.ServerRelativeURL, old.json.hash) {
			q.now[i].v3 = old
			continue
		}
		body, err := q.document(ctx, "/openapi/v3/"+pathOf(gv))
		if errs = append(errs, err); err == nil {
			begun := time.Now()
			q.now[i].v3 = q.o.newDocument(gv, old, body)
			q.busy.Add(int64(time.Since(begun)))
		}
	}
	return errors.Join(errs...)
}

func (q *question) document(ctx context.Context, path string) ([]byte, error) {
	a, err := documents.Get(ctx, q.do, documents.Question{
		OK: true, Path: path, Accept: typeJSON, Limit: maxDocument, Timeout: fetchTimeout,
	})
	if err != nil {
		return nil, err
	}
	var head struct{ OpenAPI string }
	if err = a.Bounded(maxObjects, maxValues); err == nil {
		err = json.Unmarshal(a.Body, &head)
	}
	if err != nil {
		return nil, a.Invalid(err)
	}
	if !strings.HasPrefix(head.OpenAPI, "3.") {
		return nil, a.Invalid(fmt.Errorf("%q is not OpenAPI 3", head.OpenAPI))
	}
	return a.Body, nil
}

func (q *question) spec(ctx context.Context) error {
	ask := documents.Question{Path: "/openapi/v2", Accept: typeJSON, Limit: maxSpec, Timeout: fetchTimeout}
	tag := q.known.versions[q.own[0]].tag
	if !slices.ContainsFunc(q.own, func(gv schema.GroupVersion) bool { return q.known.versions[gv].tag != tag }) {
		ask.ETag = tag // all group-versions have that document
	}
	a, err := documents.Get(ctx, q.do, ask)
	switch {
	case err != nil:
		return err
	case a.Status == http.StatusNotModified && ask.ETag != "":
		return nil
	case a.Status == http.StatusNotFound:
		q.take(nil, "")
		return nil
	case a.Status != http.StatusOK:
		return a.Unexpected()
	}
	release, err := q.begin(ctx)
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
		body, err = json.Marshal(sw)
	}
	if err != nil {
		return a.Invalid(err)
	}
	found := q.now[0].v2
	if found == nil || found.hash != negotiate.Hash(body) {
		found = pack(body)
		_, err := convert(found, handler.ToProtoBinary)
		if found.onlyJSON = err != nil; found.onlyJSON {
			q.o.log.Warn("OpenAPI v2 of backend has no protobuf form, there it is left out",
				"groupVersion", q.own[0].String(), "err", err)
		}
	}
	q.take(found, a.Header.Get("Etag"))
	return nil
}

func (q *question) take(found *packed, tag string) {
	for i := range q.now {
		q.now[i].v2, q.now[i].tag = found, tag
	}
}

// begin waits until a document may be decoded. Its holder waits for nothing, so a backend that hangs blocks no other.
func (q *question) begin(ctx context.Context) (release func(), err error) {
	select {
	case q.o.heavy <- struct{}{}:
	case <-ctx.Done():
		err = fmt.Errorf("waiting to read /openapi/v2: %w", ctx.Err())
		return nil, &documents.Error{Reason: documents.ReasonTimeout, Err: err}
	}
	begun := time.Now()
	return func() {
		q.busy.Add(int64(time.Since(begun)))
		<-q.o.heavy
	}, nil
}

// converted makes v3 documents from v2 if the backend has no v3. This loses something, as in kube-aggregator.
func (q *question) converted(ctx context.Context) error {
	names, at := make(map[string]bool), make(map[string]int)
	for i, gv := range q.own {
		old, now := q.known.versions[gv], &q.now[i]
		if old.v3 != nil && now.v2 == old.v2 && q.known.err == nil {
			now.v3 = old.v3 // made of the same
		} else if now.v2 != nil {
			names[pathOf(gv)], at[pathOf(gv)] = true, i
		}
	}
	if len(names) == 0 {
		return nil
	}
	release, err := q.begin(ctx)
	if err != nil {
		return err
	}
	defer release()
	sw, err := readSpec(q.now[0].v2.open())
	if err == nil {
		err = split(sw, names, func(name string, body []byte) {
			gv := q.own[at[name]]
			q.now[at[name]].v3 = q.o.newDocument(gv, q.known.versions[gv].v3, body)
		})
	}
	if err != nil {
		return documents.Answer{Path: "/openapi/v2"}.Invalid(fmt.Errorf("converting: %w", err))
	}
	return nil
}
