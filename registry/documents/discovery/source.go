package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/util/workqueue"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

const (
	// small is the size up to which the resources of a group-version need no share of what all large ones take
	// together: every client of the cluster downloads it. The largest in Kubernetes, core, takes 15 KB.
	small = 4 << 20
	// maxObjects and maxValues bound the memory of a small decoded document, bytesObject and
	// bytesValue that of a larger one: an object of two bytes takes hundreds. 40,000 metrics have
	// an object for each 140 bytes of legacy discovery, or two for 150, and a comma for each 15.
	maxObjects  = 100_000
	maxValues   = 1_000_000
	bytesObject = 64
	bytesValue  = 10
	// maxLegacy bounds how many group-versions are requested at a time from a backend that knows legacy discovery only.
	maxLegacy = 4
)

// source holds the state of one backend. Only the backend's goroutine writes it, any goroutine may read it.
type source = atomic.Pointer[state]

// state is the state of one backend. It is immutable.
type state struct {
	versions map[schema.GroupVersion]version
	etag     string
	tried    bool // at least one request has ended
}

// version is the state of one group-version. Zero means unknown.
type version struct {
	doc       *apidiscoveryv2.APIVersionDiscovery // the backend's last document. Nil means none yet
	confirmed time.Time                           // when the backend last sent or confirmed it
	tag       string                              // the ETag of the response that it is of, or that confirmed it
	size      int                                 // that of doc as JSON. Zero means unknown
	hash      string                              // that of the legacy body that doc is of. Empty means unknown
	err       error                               // why the last request failed. Nil means that it succeeded
}

// next begins the next state. Group-versions that are not requested, because they are unavailable, keep theirs.
func (s *state) next(etag string) *state {
	return &state{versions: maps.Collect(maps.All(s.versions)), etag: etag}
}

// with returns s with a change of each entry's version, and the first failure of these.
func (s *state) with(entries []*registry.Entry, change func(i int, v *version)) (next *state, first error) {
	next = s.next(s.etag)
	for i, e := range entries {
		v := s.versions[e.GroupVersion]
		change(i, &v)
		next.versions[e.GroupVersion] = v
		first = cmp.Or(first, v.err)
	}
	return next, first
}

// ask asks a backend for its group-versions, by aggregated discovery if the backend supports it.
func (d *Discovery) ask(ctx context.Context, known *state, entries []*registry.Entry) (next *state, _ bool, err error) {
	// Without the core group: if /api is remote, it is proxied as a whole.
	ofCore := func(e *registry.Entry) bool { return e.GroupVersion.Group == "" }
	entries = slices.DeleteFunc(slices.Clone(entries), ofCore)
	if len(entries) == 0 {
		return nil, false, nil
	}
	next, err = d.answer(ctx, known, entries)
	next.tried = true
	t := d.cfg.Tables.Table() // of what has left it, nothing is kept
	maps.DeleteFunc(next.versions, func(gv schema.GroupVersion, _ version) bool { return t.Entry(gv) == nil })
	// A confirmation changes nothing, now or after StaleAfter.
	same := maps.EqualFunc(known.versions, next.versions, func(x, y version) bool {
		return x.doc == y.doc && (x.err == nil) == (y.err == nil)
	})
	return next, !same || !known.tried, err
}

// answer asks, and returns the next state and the first failure.
func (d *Discovery) answer(ctx context.Context, old *state, entries []*registry.Entry) (*state, error) {
	q := documents.Question{Path: "/apis", Accept: discovery.AcceptV2, Limit: d.cfg.MaxBody, Turn: d.turn}
	if d.covers(old, entries) {
		q.ETag = old.etag
	}
	a, err := documents.Get(ctx, d.cfg.From(entries[0]), q)
	defer a.Done()
	switch failure, is := errors.AsType[*documents.Error](err); {
	case is && failure.Reason == documents.ReasonTooLarge:
		return d.askEach(ctx, old, entries) // each alone may be small enough
	case err != nil:
		return failed(old, entries, err)
	case a.Status == http.StatusNotModified && q.ETag != "":
		now := time.Now()
		return old.with(entries, func(_ int, v *version) { v.confirmed, v.tag, v.err = now, old.etag, nil })
	case a.Status == http.StatusServiceUnavailable:
		return failed(old, entries, a.Unexpected())
	case a.Status == http.StatusOK && isAggregated(a.Header):
		found, err := d.parse(a)
		if err != nil {
			return failed(old, entries, err)
		}
		// It may leave out a group-version that several servers have. Those of the custom-metrics library list nothing
		// there, only below /apis/<group>/<version>, which is then of what all have.
		if !slices.ContainsFunc(entries, func(e *registry.Entry) bool {
			return found[e.GroupVersion] == nil && d.several(e.GroupVersion)
		}) {
			return d.taken(old, entries, found, a.Header.Get("Etag"))
		}
	}
	// Else 404, 406, 403 or a legacy list: the server has no aggregated discovery yet, and is asked for it each time.
	a.Done()
	return d.askEach(ctx, old, entries)
}

func (d *Discovery) several(gv schema.GroupVersion) bool {
	e := d.cfg.Tables.Table().Entry(gv)
	return e != nil && len(e.Further) > 0
}

// covers reports whether the ETag covers all entries: the document of each is of that response. One that was
// unavailable then kept an earlier document, and one that several servers have since then may have been left out.
func (d *Discovery) covers(s *state, entries []*registry.Entry) bool {
	return s.etag != "" && !slices.ContainsFunc(entries, func(e *registry.Entry) bool {
		v := s.versions[e.GroupVersion]
		return v.doc == nil || v.tag != s.etag || len(v.doc.Resources) == 0 && d.several(e.GroupVersion)
	})
}

// parse reads a backend's aggregated document, which must be JSON as asked: protobuf may have texts
// that are not UTF-8, for which clients in other languages reject the whole merged document.
func (d *Discovery) parse(a documents.Answer) (versions, error) {
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	if err := decodeForeign(d.codecs.aggregated, &a, list); err != nil {
		return nil, a.Invalid(err)
	}
	return byGroupVersion(list), nil
}

// taken takes the entries' part of a document, and nothing else. An entry that is not in it becomes
// Current and empty: the backend is up and serves nothing.
func (d *Discovery) taken(old *state, entries []*registry.Entry, found versions, etag string) (*state, error) {
	next, err := old.with(entries, func(i int, v *version) {
		gv := entries[i].GroupVersion
		if d.accept(v, gv, cmp.Or(found[gv], &apidiscoveryv2.APIVersionDiscovery{})); v.err == nil {
			v.tag = etag
		}
	})
	if next.etag = etag; err != nil {
		next.etag = "" // a 304 must not hide the failure
	}
	return next, err
}

// accept makes v the version of a backend's document: bounded, and repaired where clients are known to fail.
func (d *Discovery) accept(v *version, gv schema.GroupVersion, doc *apidiscoveryv2.APIVersionDiscovery) {
	if doc.Freshness == apidiscoveryv2.DiscoveryFreshnessStale { // of an aggregator that cannot ask its server
		v.err = documents.Answer{Path: gv.String()}.Invalid(errors.New("it is Stale there"))
		return
	}
	doc.Version, doc.Freshness = gv.Version, apidiscoveryv2.DiscoveryFreshnessCurrent
	repair(doc)
	text, _ := json.Marshal(doc) // it cannot fail
	if most := d.room(gv, len(text)); len(text) > most {
		v.err = &documents.Error{Reason: documents.ReasonTooLarge, Err: fmt.Errorf(
			"reading %s: %d resources of %d bytes, at most %d beside other large ones",
			gv, len(doc.Resources), len(text), most)}
		return
	}
	if v.doc != nil && apiequality.Semantic.DeepEqual(v.doc, doc) {
		doc = v.doc
	}
	*v = version{doc: doc, confirmed: time.Now(), size: len(text)}
}

// room returns how large a group-version of a size may be: small, or what other large ones leave of twice MaxBody. As
// JSON in the merged document, resources are larger than in some servers' own.
func (d *Discovery) room(of schema.GroupVersion, size int) int {
	if size <= small { // else all of them are added up: the cost of a start was a square
		return small
	}
	room := 2 * int(d.cfg.MaxBody)
	for _, e := range d.cfg.Tables.Table().Servers() {
		if s := d.Known(e.Backend); s != nil && e.GroupVersion != of {
			if other := s.Load().versions[e.GroupVersion].size; other > small {
				room -= other
			}
		}
	}
	return max(small, room)
}

// repair fills in a missing responseKind, at which client-go 0.26.0–0.26.3 panics (kubernetes/kubernetes#118361), and
// missing verbs: kube-rs refuses the whole merged document for one null.
func repair(doc *apidiscoveryv2.APIVersionDiscovery) {
	none := &metav1.GroupVersionKind{}
	for i := range doc.Resources {
		r := &doc.Resources[i]
		r.ResponseKind, r.Verbs = cmp.Or(r.ResponseKind, none), append([]string{}, r.Verbs...)
		for j := range r.Subresources {
			s := &r.Subresources[j]
			s.ResponseKind, s.Verbs = cmp.Or(s.ResponseKind, none), append([]string{}, s.Verbs...)
		}
	}
}

// join returns s with the group-versions that former confirmed later. They need not be those of the ETag of s.
func join(s, former *state) *state {
	next := s.next("")
	next.tried = s.tried || former.tried
	for gv, v := range former.versions {
		if v.confirmed.After(s.versions[gv].confirmed) {
			next.versions[gv] = v
		}
	}
	return next
}

func failed(old *state, entries []*registry.Entry, err error) (*state, error) {
	return old.with(entries, func(_ int, v *version) { v.err = err })
}

func (d *Discovery) askEach(ctx context.Context, old *state, entries []*registry.Entry) (*state, error) {
	found := make([]version, len(entries))
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), maxLegacy, len(entries), func(i int) {
		e := entries[i] // also after ctx has ended: none is to lose its document
		found[i] = d.legacyVersion(ctx, d.cfg.From(e), old.versions[e.GroupVersion], e)
	})
	next, err := old.with(entries, func(i int, v *version) { *v = found[i] })
	next.etag = ""
	return next, err
}

// legacyVersion requests one group-version's APIResourceList and converts it as kube-aggregator does.
func (d *Discovery) legacyVersion(ctx context.Context, from documents.Do, v version, e *registry.Entry) version {
	a, err := documents.Get(ctx, from, documents.Question{
		OK: true, Path: e.Path(), Accept: runtime.ContentTypeJSON, Limit: d.cfg.MaxBody, Turn: d.turn,
	})
	defer a.Done()
	if err != nil {
		v.err = err
		return v
	}
	hash := negotiate.Hash(a.Body)
	if hash == v.hash {
		v.confirmed, v.err = time.Now(), nil // a large one need not be decoded each time
		return v
	}
	doc, err := d.convert(a)
	if err != nil {
		v.err = a.Invalid(err)
	} else if d.accept(&v, e.GroupVersion, doc); v.err == nil {
		v.hash = hash
	}
	return v
}
