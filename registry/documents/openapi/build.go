package openapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// built is a merged v2 document.
type built struct {
	of   *inputs
	json *packed
	// proto returns the protobuf form, made from json on first call.
	proto func() (*packed, error)
	took  time.Duration
	done  time.Time
}

// restFactor is how long a merged document stays good enough, as a multiple of the time it took to
// merge: in a storm of CRDs, merging for every request would take all CPU. A backend rests as long
// after its documents were decoded.
const restFactor = 4

var errNotYet = errors.New("the local apiserver's OpenAPI is not known yet")

// document returns the v2 document, and merges it if something has changed. Requests that come
// during a merge wait for its result.
func (o *OpenAPI) document(ctx context.Context) (*built, error) {
	v := o.view.Load()
	if v == nil || (v.local == nil || v.local.spec == nil) && o.cfg.FetchLocal != nil {
		return nil, errNotYet
	}
	last := o.built.Load()
	if last != nil && (last.of == v.inputs() || time.Since(last.done) < restFactor*last.took) {
		return last, nil
	}
	done := o.flights.DoChan("", func() (any, error) {
		b, err := o.merge(v.inputs())
		if err != nil {
			return nil, err
		}
		o.built.Store(b)
		return b, nil
	})
	select {
	case r := <-done:
		if r.Err != nil {
			o.log.Error("merging OpenAPI v2", "err", r.Err)
			if last != nil {
				return last, nil
			}
			return nil, r.Err
		}
		return r.Val.(*built), nil //nolint:forcetypeassert // nothing else is returned
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// merge makes the document. It keeps nothing decoded: decoded, the document of a plain cluster
// takes 60 MB.
func (o *OpenAPI) merge(in *inputs) (*built, error) {
	begun := time.Now()
	body, err := o.mergeText(in, in.sources)
	if err != nil {
		return nil, err
	}
	b := &built{of: in, json: pack(body), done: time.Now(), took: time.Since(begun)}
	b.proto = sync.OnceValues(func() (*packed, error) { return o.mergeProto(b) })
	o.build.Observe(b.took.Seconds())
	return b, nil
}

// mergeProto makes the protobuf form. One backend's document that has none must not cost the others
// theirs, so it is left out.
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

// mergeText merges the documents of some backends with the local apiserver's.
func (o *OpenAPI) mergeText(in *inputs, sources []input) (body []byte, err error) {
	defer guard("merging", &err)
	merged := &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger: "2.0", Info: &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: "unversioned"}}, Paths: &spec.Paths{},
	}}
	if in.local != nil {
		sw, err := unpackSpec(in.local)
		if err != nil {
			return nil, fmt.Errorf("reading the local apiserver's: %w", err)
		}
		merged = filterLocal(sw, in.remote)
	}
	for _, s := range sources {
		next, err := add(merged, s)
		if err != nil {
			o.log.Warn("OpenAPI of backend cannot be merged, it is left out", "apiservice", s.name, "err", err)
			continue
		}
		merged = next
	}
	return encode(merged)
}

func unpackSpec(p *packed) (*spec.Swagger, error) {
	body, err := p.open()
	if err != nil {
		return nil, err
	}
	return readSpec(body)
}

// add merges a backend's spec into a copy of merged: a spec that fails halfway leaves no trace.
func add(merged *spec.Swagger, s input) (out *spec.Swagger, err error) {
	defer guard("merging", &err)
	sw, err := unpackSpec(s.spec)
	if err != nil {
		return nil, err
	}
	if sw, err = filterRemote(sw, s.own); err != nil {
		return nil, err
	}
	next := *merged
	paths := *merged.Paths
	paths.Paths = maps.Clone(paths.Paths)
	next.Paths, next.Definitions, next.Parameters = &paths, maps.Clone(merged.Definitions), maps.Clone(merged.Parameters)
	if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&next, sw); err != nil {
		return nil, fmt.Errorf("merging: %w", err)
	}
	return &next, nil
}
