package openapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

type built struct {
	document
	of   *inputs
	err  error // why there is none
	took time.Duration
	done time.Time
}

// restFactor is how long a merged document stays good enough, as a multiple of the time it took to merge: in a storm of
// CRDs, merging for every request would take all CPU. A backend rests as long after its documents were decoded. Neither
// is longer than mostRest, a multiple of what clients wait for: this process may have been stopped meanwhile.
const restFactor, mostRest = 4, 2 * time.Minute

// document returns the v2 document, merged anew if something has changed. Requests during a merge wait for its result.
func (o *OpenAPI) document(ctx context.Context) (*built, error) {
	v := o.view.Load()
	if v == nil || v.local.spec == nil && o.cfg.Local != nil {
		return nil, errors.New("the local apiserver's OpenAPI is not known yet")
	}
	last := o.built.Load()
	if last != nil && (last.of == v.inputs() || time.Since(last.done) < min(restFactor*last.took, mostRest)) {
		return last, last.err
	}
	done := o.flights.DoChan("", func() (any, error) {
		b := o.merge(v.inputs(), last)
		o.built.Store(b)
		return b, b.err
	})
	select {
	case r := <-done:
		return r.Val.(*built), r.Err //nolint:forcetypeassert // nothing else is returned
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// merge makes the document, or keeps the last one, nil for none: the same inputs would fail again.
// It keeps nothing decoded: decoded, the document of a plain cluster takes 60 MB.
func (o *OpenAPI) merge(in *inputs, last *built) *built {
	begun := time.Now()
	b := &built{of: in}
	if last != nil {
		b.document = last.document
	}
	body, err := o.mergeText(in, in.sources)
	if o.tell("merging OpenAPI v2", err); err == nil {
		b.json = pack(body)
		b.proto = sync.OnceValues(func() (*packed, error) {
			p, err := o.mergeProto(b)
			o.tell("merging OpenAPI v2 as protobuf", err)
			return p, err
		})
	} else if b.json == nil {
		b.err = err
	}
	b.done, b.took = time.Now(), time.Since(begun)
	o.build.Observe(b.took.Seconds())
	return b
}

// tell logs a failure once, whatever the number of changes and requests that meet it.
func (o *OpenAPI) tell(message string, err error) {
	if was, _ := o.told.Swap(message, fmt.Sprint(err)); err != nil && was != err.Error() {
		o.log.Error(message, "err", err)
	}
}

// mergeProto makes the protobuf form. A backend's document that has none must not cost the others theirs.
func (o *OpenAPI) mergeProto(b *built) (*packed, error) {
	from := b.json
	without := slices.DeleteFunc(slices.Clone(b.of.sources), func(s input) bool { return s.spec.onlyJSON })
	if len(without) < len(b.of.sources) {
		body, err := o.mergeText(b.of, without)
		if err != nil {
			return nil, err
		}
		from = pack(body)
	}
	return convert(from, handler.ToProtoBinary)
}

func (o *OpenAPI) mergeText(in *inputs, sources []input) (body []byte, err error) {
	defer guard("merging", &err)
	merged := &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger: "2.0", Paths: &spec.Paths{},
		Info: &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: "unversioned"}},
	}}
	if in.local != nil {
		sw, err := readSpec(in.local.open())
		if err != nil {
			return nil, fmt.Errorf("reading the local apiserver's: %w", err)
		}
		merged = filterLocal(sw, in.remote)
	}
	for _, s := range sources {
		next, err := add(merged, s)
		if err != nil {
			s.spec.leftOut.Do(func() {
				o.log.Warn("OpenAPI of backend cannot be merged, it is left out", "apiservice", s.name, "err", err)
			})
			continue
		}
		merged = next
	}
	return json.Marshal(merged)
}

// add merges a backend's spec into a copy of merged: a spec that fails halfway leaves no trace.
func add(merged *spec.Swagger, s input) (out *spec.Swagger, err error) {
	defer guard("merging", &err)
	sw, err := readSpec(s.spec.open())
	if err != nil {
		return nil, err
	}
	if sw, err = filterRemote(sw, s.own); err != nil {
		return nil, err
	}
	next, paths := *merged, *merged.Paths
	paths.Paths = maps.Clone(paths.Paths)
	next.Paths = &paths
	next.Definitions, next.Parameters = maps.Clone(merged.Definitions), maps.Clone(merged.Parameters)
	if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&next, sw); err != nil {
		return nil, fmt.Errorf("merging: %w", err)
	}
	next.Responses = maps.Clone(sw.Responses) // which it does not merge
	maps.Copy(next.Responses, merged.Responses)
	return &next, nil
}

// packed is a compressed document: OpenAPI shrinks to a tenth, and nearly every client accepts it compressed.
type packed struct {
	zipped []byte
	size   int
	hash   string // upper-case SHA-512 of the document, as in kube-openapi's hashes and ETags
	made   time.Time

	onlyJSON bool      // the v2 document of a backend has no protobuf form
	leftOut  sync.Once // logs why it cannot be merged
}

func pack(body []byte) *packed {
	return &packed{zipped: negotiate.Gzip(body), size: len(body), hash: negotiate.Hash(body), made: time.Now()}
}

func (p *packed) open() []byte {
	out := make([]byte, p.size)
	_, _ = io.ReadFull(&plain{of: p}, out) // it cannot fail: pack has compressed it
	return out
}

// plain unpacks a document while it is read. A client that does not read its response keeps some 40 KB of it, not all.
type plain struct {
	of *packed
	z  *gzip.Reader // nil before the first Read
}

func (p *plain) Read(b []byte) (n int, err error) {
	if p.z == nil {
		p.z = new(gzip.Reader)
		_ = p.z.Reset(bytes.NewReader(p.of.zipped)) // it cannot fail: pack has compressed it
	}
	return p.z.Read(b) //nolint:wrapcheck // io.EOF must stay io.EOF
}

// Seek tells http.ServeContent the size. It need not seek: no part is asked for, and nothing was read before.
func (p *plain) Seek(int64, int) (int64, error) { return int64(p.of.size), nil }

// serve sends the document, with the tag of its JSON form in any form. net/http handles conditional requests.
func (p *packed) serve(w http.ResponseWriter, r *http.Request, contentType, hash string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	gzip := negotiate.TakesGzip(r.Header["Accept-Encoding"]...)
	h.Set("Etag", negotiate.Tag(strconv.Quote(hash), gzip))
	h.Add("Vary", "Accept-Encoding")
	content := io.ReadSeeker(&plain{of: p})
	if gzip {
		h.Set("Content-Encoding", "gzip")
		content = bytes.NewReader(p.zipped)
	}
	r.Header.Del("Range") // for its last byte all would be unpacked, and a head has room for 200,000 parts
	http.ServeContent(w, r, "", p.made, content)
}
