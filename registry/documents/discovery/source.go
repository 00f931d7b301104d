package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

const (
	// maxVersion bounds one group-version's part of the document, encoded. The largest that Kubernetes has, core, takes 15 KB; what a backend lists, every client of
	// the cluster downloads.
	maxVersion = 4 << 20
	// maxLegacy bounds how many group-versions of one backend are asked for at a time when it knows legacy discovery only.
	maxLegacy = 4
)

// source is where what is known of one backend is kept. Its goroutine writes it, anyone may read it.
type source = atomic.Pointer[state]

// state is what is known of one backend. It is immutable.
type state struct {
	versions map[schema.GroupVersion]*version
	etag     string
	tried    bool // at least one question has ended
	// content is the same pointer while it makes the same document: being confirmed again is nothing new. Nil: not asked yet.
	content *content
}

// content has a size, so that each has an address of its own.
type content struct{ _ byte }

// version is what is known of one group-version.
type version struct {
	// doc is what the backend said last. Nil: it has never said anything.
	doc *apidiscoveryv2.APIVersionDiscovery
	// confirmed is when it last said so.
	confirmed time.Time
	// err is why the last question failed. Nil: it did not.
	err error
}

// version is what is known of a group-version. Zero: nothing.
func (s *state) version(gv schema.GroupVersion) version {
	if v := s.versions[gv]; v != nil {
		return *v
	}
	return version{}
}

// next begins what is known afterwards: what is not asked for now, because it is unavailable for a while, stays.
func (s *state) next(etag string) *state {
	next := &state{versions: make(map[schema.GroupVersion]*version, len(s.versions)), etag: etag}
	maps.Copy(next.versions, s.versions)
	return next
}

// ask asks a backend for its group-versions, by aggregated discovery if it knows that.
func (d *Discovery) ask(ctx context.Context, known *state, entries []*registry.Entry) (next *state, changed bool, err error) {
	if entries = grouped(entries); len(entries) == 0 {
		return nil, false, nil
	}
	next, err = d.answer(ctx, known, entries)
	next.tried = true
	if sameContent(known, next) {
		next.content = known.content
		return next, false, err
	}
	next.content = new(content)
	return next, true, err
}

// grouped leaves out the core group: /api is proxied whole when it is remote.
func grouped(entries []*registry.Entry) []*registry.Entry {
	out := make([]*registry.Entry, 0, len(entries))
	for _, e := range entries {
		if e.GroupVersion.Group != "" {
			out = append(out, e)
		}
	}
	return out
}

// answer asks, and returns what is known afterwards and the first failure.
func (d *Discovery) answer(ctx context.Context, old *state, entries []*registry.Entry) (*state, error) {
	q := documents.Question{Path: "/apis", Accept: discovery.AcceptV2}
	if covers(old, entries) {
		q.ETag = old.etag
	}
	a, err := documents.Get(ctx, d.cfg.From(entries[0]), q)
	switch {
	case err != nil:
		return failed(old, entries, err), err
	case a.Status == http.StatusNotModified && q.ETag != "":
		return confirmed(old, entries), nil
	case a.Status == http.StatusServiceUnavailable:
		return failed(old, entries, a.Unexpected()), a.Unexpected()
	case a.Status == http.StatusOK && isAggregated(a.Header):
		found, err := d.parse(a)
		if err != nil {
			return failed(old, entries, err), err
		}
		return taken(old, entries, found, a.Header.Get("Etag"))
	}
	// 404, 406, 403 or a legacy list: a server that does not know aggregated discovery. It is asked anew each time, so that one that learns it is found out.
	return d.askEach(ctx, old, entries)
}

// covers reports whether an ETag stands for all entries: each has been said something of.
func covers(s *state, entries []*registry.Entry) bool {
	for _, e := range entries {
		if s.version(e.GroupVersion).doc == nil {
			return false
		}
	}
	return s.etag != ""
}

func isAggregated(h http.Header) bool {
	_, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && params["g"] == "apidiscovery.k8s.io" && params["v"] == "v2" && params["as"] == "APIGroupDiscoveryList"
}

// parse reads an aggregated document.
func (d *Discovery) parse(a documents.Answer) (map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery, error) {
	list, media, err := d.aggregatedList(a)
	if err == nil && media == runtime.ContentTypeProtobuf {
		list, err = clean(list)
	}
	if err != nil {
		return nil, a.Invalid(err)
	}
	return byGroupVersion(list), nil
}

// aggregatedList decodes an aggregated document and says which media type it came in.
func (d *Discovery) aggregatedList(a documents.Answer) (list *apidiscoveryv2.APIGroupDiscoveryList, media string, err error) {
	list = &apidiscoveryv2.APIGroupDiscoveryList{}
	if media, _, err = mime.ParseMediaType(a.Header.Get("Content-Type")); err == nil {
		err = decode(d.codecs.aggregated, media, a.Body, list)
	}
	return list, media, err
}

// clean makes valid UTF-8 of all texts, as JSON is in any case. Go's protobuf does not look at them, but that of other languages refuses a whole document for one byte.
func clean(list *apidiscoveryv2.APIGroupDiscoveryList) (*apidiscoveryv2.APIGroupDiscoveryList, error) {
	b, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	out := &apidiscoveryv2.APIGroupDiscoveryList{}
	if err := json.Unmarshal(b, out); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	return out, nil
}

// taken takes from a document what belongs to the entries, and nothing else. What it does not hold is Current and empty: the backend is there and serves nothing.
func taken(old *state, entries []*registry.Entry, found map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery, etag string) (*state, error) {
	var first error
	next := old.next(etag)
	now := time.Now()
	for _, e := range entries {
		doc := found[e.GroupVersion]
		if doc == nil {
			doc = &apidiscoveryv2.APIVersionDiscovery{}
		}
		v := accept(old.version(e.GroupVersion), e.GroupVersion, doc, now)
		next.versions[e.GroupVersion] = v
		if first == nil {
			first = v.err
		}
	}
	if first != nil {
		next.etag = "" // a 304 must not make it look well
	}
	return next, first
}

// accept makes a version of what a backend has said of it: bounded, and repaired where clients are known to stumble.
func accept(old version, gv schema.GroupVersion, doc *apidiscoveryv2.APIVersionDiscovery, now time.Time) *version {
	doc.Version, doc.Freshness = gv.Version, apidiscoveryv2.DiscoveryFreshnessCurrent
	repair(doc)
	if size := doc.Size(); size > maxVersion {
		old.err = &documents.Error{Reason: documents.ReasonTooLarge, Err: fmt.Errorf("reading %s: %d bytes of resources, at most %d", gv, size, maxVersion)}
		return &old
	}
	if old.doc != nil && apiequality.Semantic.DeepEqual(old.doc, doc) {
		doc = old.doc
	}
	return &version{doc: doc, confirmed: now}
}

// repair fills in a missing responseKind, at which client-go 0.26.0–0.26.3 panics (kubernetes/kubernetes#118361), as kube-aggregator does.
func repair(doc *apidiscoveryv2.APIVersionDiscovery) {
	for i := range doc.Resources {
		r := &doc.Resources[i]
		if r.ResponseKind == nil {
			r.ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range r.Subresources {
			if r.Subresources[j].ResponseKind == nil {
				r.Subresources[j].ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
}

// confirmed is old, said again.
func confirmed(old *state, entries []*registry.Entry) *state {
	next := old.next(old.etag)
	now := time.Now()
	for _, e := range entries {
		next.versions[e.GroupVersion] = &version{doc: old.versions[e.GroupVersion].doc, confirmed: now}
	}
	return next
}

// failed is old with a failure.
func failed(old *state, entries []*registry.Entry, err error) *state {
	next := old.next(old.etag)
	for _, e := range entries {
		v := old.version(e.GroupVersion)
		v.err = err
		next.versions[e.GroupVersion] = &v
	}
	return next
}

// askEach asks for each group-version by itself.
func (d *Discovery) askEach(ctx context.Context, old *state, entries []*registry.Entry) (*state, error) {
	found := make([]*version, len(entries))
	var asking sync.WaitGroup
	slots := make(chan struct{}, maxLegacy)
	for i, e := range entries {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			found[i] = d.legacyVersion(ctx, old.version(e.GroupVersion), e)
		})
	}
	asking.Wait()
	var first error
	next := old.next("")
	for i, e := range entries {
		next.versions[e.GroupVersion] = found[i]
		if first == nil {
			first = found[i].err
		}
	}
	return next, first
}

// sameContent reports whether two states make the same document, now and when they have become old.
func sameContent(a, b *state) bool {
	return a.tried == b.tried && maps.EqualFunc(a.versions, b.versions, func(x, y *version) bool { return x.doc == y.doc && (x.err == nil) == (y.err == nil) })
}
