package openapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// localEvery is the time between requests for the local apiserver's documents: its index, a few kilobytes, and v2, of
// which a 304 is as cheap. After a change it must merge v2, a second of CPU with a thousand CRDs, and then we rest.
const localEvery = 3 * time.Second

// localState is what a local apiserver serves, or all of them together. It is immutable.
type localState struct {
	server    string
	release   string
	away      bool // it did not answer when last asked for its release
	index     map[string]handler3.OpenAPIV3DiscoveryGroupVersion
	indexHash string
	spec      *packed // v2
	specTag   string
}

// askLocal requests all of a server, and stores what has changed. After an error the former stays.
func (o *OpenAPI) askLocal(ctx context.Context, server string, known *atomic.Pointer[localState]) error {
	for _, ask := range []func(context.Context, *localState) error{o.localRelease, o.localIndex, o.localSpec} {
		last := cmp.Or(known.Load(), &localState{server: server})
		next := *last
		err := ask(ctx, &next)
		if known.Store(&next); next.spec != last.spec || next.indexHash != last.indexHash ||
			next.release != last.release || next.away != last.away {
			o.Touch()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *OpenAPI) localRelease(ctx context.Context, s *localState) error {
	err := o.cfg.Release(ctx, s.server, &s.release)
	s.away = err != nil
	return err
}

// together returns what the local apiservers serve together, as the newest one that answers has it (another one's
// document cannot be requested), and parts of v2 for what that lacks. It tells which of them have a document of the
// index. Zero means that none is known.
func (o *OpenAPI) together(t *registry.Table) (_ *localState, parts []input) {
	var all []*localState
	var known []string
	for _, s := range o.Locals() {
		if s != nil && s.index != nil {
			all, known = append(all, s), append(known, s.server)
		}
	}
	maps.DeleteFunc(o.Departed, func(gv schema.GroupVersion, _ bool) bool {
		has := func(s *localState) bool { return s.index[pathOf(gv)].ServerRelativeURL != "" }
		return !slices.ContainsFunc(all, has)
	})
	if len(all) == 0 {
		return &localState{}, nil
	}
	slices.SortFunc(all, func(a, b *localState) int { // not by index: that names one of several claimants by chance
		return cmp.Or(cmp.Compare(metric.Number(a.away), metric.Number(b.away)), documents.Newer(a.release, b.release),
			cmp.Compare(a.spec.digest(), b.spec.digest()),
			cmp.Compare(a.server, b.server)) // else v2 would be another's, and merged anew, each time
	})
	out, by := *all[0], make(map[schema.GroupVersionResource][]string)
	out.index = maps.Clone(out.index)
	for _, s := range all {
		part := input{name: s.server, spec: s.spec}
		out.spec = cmp.Or(out.spec, s.spec)
		for _, path := range slices.Sorted(maps.Keys(s.index)) {
			item := s.index[path]
			gv, ok := groupVersionOf(path)
			if _, left := o.Departed[gv]; s.away && left && t.Entry(gv) == nil {
				continue // its APIService was deleted meanwhile, as in discovery
			}
			if _, known := out.index[path]; !known {
				if out.index[path] = item; ok {
					part.own = append(part.own, gv)
				}
			}
			if out.index[path] == item {
				key := schema.GroupVersionResource{Resource: "/openapi/v3/" + path}
				by[key] = append(by[key], s.server)
			}
		}
		if part.spec != out.spec && part.spec != nil && len(part.own) > 0 {
			parts = append(parts, part)
		}
	}
	maps.DeleteFunc(by, func(_ schema.GroupVersionResource, of []string) bool { return len(of) == len(all) })
	o.cfg.Only("OpenAPI", known, by) // first: what is listed is served
	return &out, parts
}

func (o *OpenAPI) localIndex(ctx context.Context, s *localState) error {
	a, err := documents.Get(ctx, o.cfg.Local(s.server), documents.Question{
		OK: true, Path: "/openapi/v3", Accept: typeJSON, Limit: maxSpec, Timeout: fetchTimeout,
	})
	if err != nil {
		return err
	}
	hash := negotiate.Hash(a.Body)
	if hash == s.indexHash {
		return nil
	}
	index := &handler3.OpenAPIV3Discovery{}
	if err := json.Unmarshal(a.Body, index); err != nil {
		return a.Invalid(err)
	}
	s.index, s.indexHash = index.Paths, hash
	return nil
}

func (o *OpenAPI) localSpec(ctx context.Context, s *localState) error {
	a, err := documents.Get(ctx, o.cfg.Local(s.server), documents.Question{
		Path: "/openapi/v2", Accept: typeJSON, ETag: s.specTag, Limit: maxLocalSpec, Timeout: fetchTimeout,
	})
	if err == nil && a.Status == http.StatusOK {
		s.spec, s.specTag = pack(a.Body), a.Header.Get("Etag")
	} else if err == nil && a.Status != http.StatusNotModified && a.Status != http.StatusNotFound { // it may have none
		err = a.Unexpected()
	}
	return err
}

// ofOwn reports whether a path of the local apiserver's index is of the group that this process serves with dir:.
func ofOwn(path string) bool {
	return strings.HasPrefix(path+"/", "apis/"+apiregistrationv1.GroupName+"/")
}

// askOwn reads the documents of what this process serves itself. After an error Run ends, unless it came too late.
func (o *OpenAPI) askOwn(ctx context.Context) error {
	gv := apiregistrationv1.SchemeGroupVersion
	q := o.question(o.cfg.FetchOwn, &state{}, gv)
	body, err := q.document(ctx, "/openapi/v3/"+pathOf(gv))
	if err == nil {
		err = q.spec(ctx)
	}
	if o.own = &q.now[0]; err == nil && o.own.v2 == nil {
		err = fmt.Errorf("there is none of %s", gv)
	}
	o.own.v3 = o.newDocument(gv, nil, body)
	return err
}
