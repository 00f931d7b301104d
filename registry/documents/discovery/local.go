package discovery

import (
	"cmp"
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
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/documents"
)

const (
	// localEvery is the time between conditional GETs of the local apiserver's documents. A 304
	// costs it some 50 µs. This is also how soon a change of a CRD is seen that does not change its
	// APIServices (short names, categories, a subresource).
	localEvery = 2 * time.Second
	// localTime is how long it may take: only the merged document waits for it.
	localTime = 30 * time.Second
)

// localState is what a local apiserver serves, or all of them together. It is immutable.
type localState struct {
	server    string
	release   string
	confirmed time.Time // when all was last read
	failed    bool      // the last request
	groups    map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery
	core      *apidiscoveryv2.APIGroupDiscoveryList // aggregated /api
	versions  *metav1.APIVersions                   // legacy /api

	groupsTag, coreTag string
}

// complete reports whether every document has been read once.
func (s *localState) complete() bool {
	return s != nil && s.groups != nil && s.core != nil && s.versions != nil
}

// askLocal requests all documents of a server and stores the changed ones. An error changes no
// document.
func (d *Discovery) askLocal(ctx context.Context, server string, known *atomic.Pointer[localState]) error {
	last := cmp.Or(known.Load(), &localState{server: server})
	next, changed := *last, false
	release, err := d.cfg.Release(ctx, server)
	if err == nil {
		next.release = release
	}
	err = errors.Join(err, d.localGroups(ctx, &next, &changed), d.localCore(ctx, &next, &changed), d.localVersions(ctx, &next, &changed))
	if next.failed = err != nil; !next.failed {
		next.confirmed = time.Now()
	}
	known.Store(&next)
	if changed || next.release != last.release || next.failed != last.failed {
		d.sources.Touch()
	}
	return err
}

// acceptLocal prefers protobuf: a cluster's own document is read at every change of a CRD.
// It wants no group-versions of peers, to which a server would proxy.
const acceptLocal = runtime.ContentTypeProtobuf + aggregatedParams + noPeers + "," + runtime.ContentTypeJSON + aggregatedParams + noPeers

const noPeers = ";profile=nopeer"

func (d *Discovery) localGroups(ctx context.Context, s *localState, changed *bool) error {
	list, tag, err := d.list(ctx, d.cfg.Local(s.server), "/apis", s.groupsTag)
	if err != nil || list == nil {
		return err
	}
	s.groups, s.groupsTag, *changed = byGroupVersion(list), tag, true
	if d.own != nil {
		maps.DeleteFunc(s.groups, func(gv schema.GroupVersion, _ *apidiscoveryv2.APIVersionDiscovery) bool {
			return gv.Group == apiregistrationv1.GroupName
		})
		maps.Copy(s.groups, d.own)
	}
	return nil
}

// askOwn reads the documents of what this process serves itself, if anything.
func (d *Discovery) askOwn(ctx context.Context) error {
	if d.cfg.FetchOwn == nil {
		return nil
	}
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
	list, tag, err := d.list(ctx, d.cfg.Local(s.server), "/api", s.coreTag)
	if err != nil || list == nil {
		return err
	}
	list.TypeMeta = metav1.TypeMeta{} // encoding sets it
	s.core, s.coreTag, *changed = list, tag, true
	return nil
}

// maxLocal bounds the local apiserver's documents. They list the resources of all its CRDs and,
// which are dropped here, those of backends as its own aggregator sees them.
const maxLocal = 256 << 20

// list returns an aggregated document and its tag, or nil if it has not changed.
func (d *Discovery) list(ctx context.Context, do documents.Do, path, tag string) (*apidiscoveryv2.APIGroupDiscoveryList, string, error) {
	a, err := documents.Get(ctx, do, documents.Question{Path: path, Accept: acceptLocal, ETag: tag, Limit: maxLocal, Timeout: localTime})
	switch {
	case err != nil:
		return nil, "", err
	case a.Status == http.StatusNotModified && tag != "":
		return nil, tag, nil
	case a.Status != http.StatusOK:
		return nil, "", a.Unexpected()
	case !isAggregated(a.Header):
		return nil, "", a.Invalid(errors.New("the local apiserver has no aggregated discovery v2: it must be Kubernetes 1.30 or later"))
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	media, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err == nil {
		err = decode(d.codecs.aggregated, media, a.Body, list)
	}
	if err != nil {
		return nil, "", a.Invalid(err)
	}
	return list, a.Header.Get("Etag"), nil
}

func (d *Discovery) localVersions(ctx context.Context, s *localState, changed *bool) error {
	a, err := documents.Get(ctx, d.cfg.Local(s.server), documents.Question{Path: "/api", Accept: runtime.ContentTypeJSON})
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK {
		return a.Unexpected()
	}
	v := &metav1.APIVersions{}
	if err := json.Unmarshal(a.Body, v); err != nil { // it has no apiVersion, which the codecs require
		return a.Invalid(err)
	}
	if s.versions == nil || !slices.Equal(s.versions.ServerAddressByClientCIDRs, v.ServerAddressByClientCIDRs) {
		s.versions, *changed = v, true
	}
	return nil
}
