package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry/documents"
)

const (
	// localEvery is the time between conditional GETs of the local apiserver's documents. A 304 costs it some 50 µs, and a CRD that changes without a change of its
	// APIServices (short names, categories, a subresource) is seen this soon.
	localEvery = 2 * time.Second
	// localSlow is the same for the legacy form of /api, which has no ETag and never changes while its server lives.
	localSlow = time.Minute
)

// hurries are the pauses after a change of a CRD or of the Local APIServices: kube-apiserver's own document follows them, or goes before them, by some tens of
// milliseconds, and by more when it is busy.
func hurries() []time.Duration {
	return []time.Duration{30 * time.Millisecond, 70 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, time.Second}
}

// local follows the local apiserver's documents.
type local struct {
	state atomic.Pointer[localState]
	poke  chan struct{} // holds one token: there may be something new
	last  localState    // of the one goroutine
}

// localState is immutable.
type localState struct {
	groups   map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery
	core     *apidiscoveryv2.APIGroupDiscoveryList // aggregated /api
	versions *metav1.APIVersions                   // legacy /api

	groupsTag, coreTag string
	versionsAt         time.Time
	confirmed          time.Time
	err                error
}

// complete reports whether every document has been there once.
func (s *localState) complete() bool {
	return s != nil && s.groups != nil && s.core != nil && s.versions != nil
}

func (l *local) wake() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// LocalChanged hints that the local apiserver may have something new to say: a CRD has changed. It never blocks.
func (d *Discovery) LocalChanged() { d.local.wake() }

// followLocal asks until ctx ends.
func (d *Discovery) followLocal(ctx context.Context) {
	documents.Pace{Every: localEvery, Hints: d.local.poke, After: hurries()}.Follow(ctx, d.askLocal)
}

// askLocal asks for all documents and publishes what has changed. On an error what was known stays.
func (d *Discovery) askLocal(ctx context.Context) error {
	l := &d.local
	next := l.last
	changed := false
	next.err = errors.Join(d.localGroups(ctx, &next, &changed), d.localCore(ctx, &next, &changed), d.localVersions(ctx, &next, &changed))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if next.err == nil {
		next.confirmed = time.Now()
	}
	if (next.err == nil) != (l.last.err == nil) {
		if next.err != nil {
			d.log.Warn("local apiserver's discovery cannot be read, what was known stays", "err", next.err)
		} else if l.last.err != nil {
			d.log.Info("local apiserver's discovery can be read again")
		}
	}
	l.last = next
	l.state.Store(&next)
	d.metrics.Polled(next.err)
	if changed {
		d.touch()
	}
	return next.err
}

// acceptLocal prefers protobuf: a cluster's own document is read at every change of a CRD.
const acceptLocal = runtime.ContentTypeProtobuf + aggregatedParams + "," + runtime.ContentTypeJSON + aggregatedParams

func (d *Discovery) localGroups(ctx context.Context, s *localState, changed *bool) error {
	list, tag, err := d.list(ctx, d.cfg.FetchLocal, "/apis", s.groupsTag)
	if err != nil || list == nil {
		return err
	}
	s.groups, s.groupsTag, *changed = byGroupVersion(list), tag, true
	if d.own != nil {
		maps.DeleteFunc(s.groups, func(gv schema.GroupVersion, _ *apidiscoveryv2.APIVersionDiscovery) bool {
			return gv.Group == apiregistration
		})
		maps.Copy(s.groups, d.own)
	}
	return nil
}

// askOwn reads what this process serves itself.
func (d *Discovery) askOwn(ctx context.Context) error {
	list, _, err := d.list(ctx, d.cfg.FetchOwn, "/apis", "")
	if err != nil {
		return fmt.Errorf("reading discovery of this process itself: %w", err)
	}
	d.own = byGroupVersion(list)
	return nil
}

func byGroupVersion(list *apidiscoveryv2.APIGroupDiscoveryList) map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery {
	out := make(map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery)
	for i := range list.Items {
		g := &list.Items[i]
		for j := range g.Versions {
			out[schema.GroupVersion{Group: g.Name, Version: g.Versions[j].Version}] = &g.Versions[j]
		}
	}
	return out
}

func (d *Discovery) localCore(ctx context.Context, s *localState, changed *bool) error {
	list, tag, err := d.list(ctx, d.cfg.FetchLocal, "/api", s.coreTag)
	if err != nil || list == nil {
		return err
	}
	list.TypeMeta = metav1.TypeMeta{} // it is put there by encoding
	s.core, s.coreTag, *changed = list, tag, true
	return nil
}

// maxLocal bounds the local apiserver's documents, which list what all its CRDs define.
const maxLocal = 32 << 20

// list returns an aggregated document and its tag, or nil if it has not changed.
func (d *Discovery) list(ctx context.Context, do func(context.Context, *http.Request) (*http.Response, error), path, tag string) (*apidiscoveryv2.APIGroupDiscoveryList, string, error) {
	a, err := documents.Get(ctx, do, documents.Question{Path: path, Accept: acceptLocal, ETag: tag, Limit: maxLocal})
	switch {
	case err != nil:
		return nil, "", err
	case a.Status == http.StatusNotModified && tag != "":
		return nil, tag, nil
	case a.Status != http.StatusOK:
		return nil, "", &documents.Error{Reason: documents.ReasonStatus, Err: fmt.Errorf("getting %s: %d %s", path, a.Status, http.StatusText(a.Status))}
	case !isAggregated(a.Header):
		return nil, "", &documents.Error{Reason: documents.ReasonInvalid, Err: fmt.Errorf("getting %s: the local apiserver has no aggregated discovery v2: it must be Kubernetes 1.30 or later", path)}
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	media, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err == nil {
		err = decode(d.codecs.aggregated, media, a.Body, list)
	}
	if err != nil {
		return nil, "", &documents.Error{Reason: documents.ReasonInvalid, Err: fmt.Errorf("reading %s: %w", path, err)}
	}
	return list, a.Header.Get("Etag"), nil
}

func (d *Discovery) localVersions(ctx context.Context, s *localState, changed *bool) error {
	if s.versions != nil && time.Since(s.versionsAt) < localSlow {
		return nil
	}
	a, err := documents.Get(ctx, d.cfg.FetchLocal, documents.Question{Path: "/api", Accept: runtime.ContentTypeJSON})
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK {
		return &documents.Error{Reason: documents.ReasonStatus, Err: fmt.Errorf("getting /api: %d %s", a.Status, http.StatusText(a.Status))}
	}
	v := &metav1.APIVersions{}
	if err := json.Unmarshal(a.Body, v); err != nil { // it has no apiVersion, which the codecs want
		return &documents.Error{Reason: documents.ReasonInvalid, Err: fmt.Errorf("reading /api: %w", err)}
	}
	s.versionsAt = time.Now()
	if s.versions == nil || !slices.Equal(s.versions.ServerAddressByClientCIDRs, v.ServerAddressByClientCIDRs) {
		s.versions, *changed = v, true
	}
	return nil
}
