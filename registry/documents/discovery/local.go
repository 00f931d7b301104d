package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/builtin"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

const (
	// localEvery is the time between conditional GETs of the local apiserver's documents. A 304 costs it some 50 µs. So
	// soon is a CRD's change seen that leaves its APIServices (short names, categories, a subresource).
	localEvery = 2 * time.Second
	localTime  = 30 * time.Second // how long it may take: only the merged document waits for it
)

// localState is what a local apiserver serves, or all of them together. It is immutable.
type localState struct {
	server    string
	release   string
	confirmed time.Time // when all was last read
	failed    bool      // the last request
	groups    versions
	core      *apidiscoveryv2.APIGroupDiscoveryList // aggregated /api
	versions  *metav1.APIVersions                   // legacy /api

	groupsTag, coreTag string
}

// askLocal requests all documents of a server and stores the changed ones. An error changes no document.
func (d *Discovery) askLocal(ctx context.Context, server string, known *atomic.Pointer[localState]) error {
	last := cmp.Or(known.Load(), &localState{server: server})
	next, from := *last, d.cfg.Local(server)
	// It may come back as another release, and lack what it had: until it has answered it must get no clients again.
	if !last.failed && last.groups != nil && !d.cfg.Ready(server) {
		next.failed = true
		last = new(next)
		known.Store(last)
		d.Touch()
	}
	if err := d.cfg.Release(ctx, server, &next.release); err != nil { // the other requests might wait for a minute
		next.failed = true
		if known.Store(&next); !last.failed {
			d.Touch()
		}
		return err
	}
	groups, tag, err := d.list(ctx, from, "/apis", last.groupsTag)
	if groups != nil {
		next.groups, next.groupsTag = byGroupVersion(groups), tag
		if d.own != nil {
			maps.DeleteFunc(next.groups, func(gv schema.GroupVersion, _ *apidiscoveryv2.APIVersionDiscovery) bool {
				return gv.Group == apiregistrationv1.GroupName
			})
			maps.Copy(next.groups, d.own)
		}
	}
	core, tag, err2 := d.list(ctx, from, "/api", last.coreTag)
	if core != nil {
		core.TypeMeta = metav1.TypeMeta{} // encoding sets it
		next.core, next.coreTag = core, tag
	}
	err = errors.Join(err, err2, localVersions(ctx, from, &next))
	if next.failed = err != nil; !next.failed {
		next.confirmed = time.Now()
	}
	known.Store(&next)
	if groups != nil || core != nil || next.versions != last.versions ||
		next.release != last.release || next.failed != last.failed {
		d.Touch()
	}
	return err
}

// acceptLocal prefers protobuf: a cluster's own document is read at every change of a CRD. Of several servers it wants
// no group-versions of peers, to which a server would proxy. One alone may be a load balancer's address, before peers.
func (d *Discovery) acceptLocal() string {
	params := aggregatedParams
	if len(d.Locals()) > 1 {
		params += ";profile=nopeer"
	}
	return runtime.ContentTypeProtobuf + params + "," + runtime.ContentTypeJSON + params
}

func (d *Discovery) askOwn(ctx context.Context) error {
	gv := apiregistrationv1.SchemeGroupVersion
	v := d.legacyVersion(ctx, d.cfg.FetchOwn, version{}, &registry.Entry{GroupVersion: gv})
	d.own = versions{gv: v.doc}
	return v.err
}

func byGroupVersion(list *apidiscoveryv2.APIGroupDiscoveryList) versions {
	out := make(versions)
	for _, g := range list.Items {
		for _, v := range g.Versions { // copied: a pointer into the list would keep the group's other versions, too
			out[schema.GroupVersion{Group: g.Name, Version: v.Version}] = &v
		}
	}
	return out
}

// list returns an aggregated document and its tag, or nil if it has not changed.
func (d *Discovery) list(ctx context.Context, do documents.Do,
	path, tag string) (*apidiscoveryv2.APIGroupDiscoveryList, string, error) {
	// maxLocal bounds the local apiserver's documents. They list the resources of all its CRDs and,
	// which are dropped here, those of backends as its own aggregator sees them.
	const maxLocal = 256 << 20
	a, err := documents.Get(ctx, do, documents.Question{
		OK: true, Path: path, Accept: d.acceptLocal(), ETag: tag, Limit: maxLocal, Timeout: localTime,
	})
	switch {
	case err != nil:
		return nil, "", err
	case a.Status == http.StatusNotModified:
		return nil, tag, nil
	case !isAggregated(a.Header):
		err = errors.New("the local apiserver has no aggregated discovery v2: it must be Kubernetes 1.30 or later")
		return nil, "", a.Invalid(err)
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	media, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type")) // it cannot fail: it is aggregated
	if err := decode(d.codecs.aggregated, media, a.Body, list); err != nil {
		return nil, "", a.Invalid(err)
	}
	return list, a.Header.Get("Etag"), nil
}

func localVersions(ctx context.Context, from documents.Do, s *localState) error {
	a, err := documents.Get(ctx, from, documents.Question{OK: true, Path: "/api", Accept: runtime.ContentTypeJSON})
	if err != nil {
		return err
	}
	v := &metav1.APIVersions{}
	if err := json.Unmarshal(a.Body, v); err != nil { // it has no apiVersion, which the codecs require
		return a.Invalid(err)
	}
	if s.versions == nil || !slices.Equal(s.versions.ServerAddressByClientCIDRs, v.ServerAddressByClientCIDRs) {
		s.versions = v
	}
	return nil
}

// versions are group-versions with their resources. The core group has no name.
type versions map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery

// together returns what the local apiservers serve together, in the words of the newest that answers, and tells who has
// what. Names order only equal ones: all replicas make the same documents. Nil means that none is known or, at
// the start, that others may answer until again: requests would go to the first, which may lack what others have.
func (d *Discovery) together(m *merge) (_ *localState, again time.Time) {
	if d.cfg.Local == nil {
		return &localState{groups: d.own}, again
	}
	var all []*localState
	var known, unread []string
	for name, s := range d.Locals() {
		m.silent = m.silent || s == nil
		if s == nil || s.groups == nil || s.core == nil || s.versions == nil { // not all has been read once
			unread = append(unread, name)
			continue
		}
		if all = append(all, s); !s.failed { // else it may refuse us, and so all users with certificates
			known = append(known, name)
		}
	}
	byAddr := func(x, y metav1.ServerAddressByClientCIDR) int { return cmp.Compare(x.ServerAddress, y.ServerAddress) }
	slices.SortFunc(all, func(a, b *localState) int { // servers with equal documents differ in addresses
		return cmp.Or(at(a.failed)-at(b.failed), documents.Newer(a.release, b.release),
			cmp.Compare(a.groupsTag, b.groupsTag), cmp.Compare(a.coreTag, b.coreTag),
			slices.CompareFunc(a.versions.ServerAddressByClientCIDRs, b.versions.ServerAddressByClientCIDRs, byAddr),
			cmp.Compare(a.server, b.server)) // else each time other pointers would look like a change
	})
	if len(all) == 0 {
		return nil, again
	}
	d.began = cmp.Or(d.began, m.now)
	const soon = 500 * time.Millisecond // one that is down must not keep requests from the others
	if again = d.began.Add(soon); m.silent && d.view.Load() == nil && m.now.Before(again) {
		return nil, again
	}
	out, only := *all[0], make(map[schema.GroupVersionResource][]string)
	differs := func(s *localState) bool { return s.groupsTag != out.groupsTag || s.coreTag != out.coreTag }
	if slices.ContainsFunc(all, differs) {
		groups := make(versions)
		for _, s := range all {
			groups.add(s, all[0], m)
		}
		var core []part
		for gv := range byGroupVersion(out.core) { // one, v1: no order is lost
			core = append(core, part{group: gv.Group, doc: groups[gv]})
		}
		out.groups, out.core, only = groups, listOfParts(core), lacking(all)
	}
	// What unread servers may have, or was made while none can be read, is Stale: unlisted or 404, deletions lose data.
	if lost := all[0].failed; lost || len(unread) > 0 {
		out.groups = maps.Clone(out.groups)
		for _, e := range m.table.Entries() {
			gv, stale := e.GroupVersion, apidiscoveryv2.DiscoveryFreshnessStale
			if ours := builtin.Group(gv.Group); gv.Group != "" && (ours || lost) && e.Local() && out.groups[gv] == nil {
				out.groups[gv] = &apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: stale}
				if ours { // of another release; CRDs are of all
					only[gv.WithResource("")], only[schema.GroupVersionResource{Resource: e.Path()}] = unread, unread
				}
			}
		}
	}
	d.cfg.Only("discovery", known, only) // first: what is listed is served
	return &out, again
}

// Release returns the release of a local apiserver. Empty means that it is not known.
func (d *Discovery) Release(server string) string {
	return cmp.Or(d.Locals()[server], &localState{}).release
}

// all returns what a server has. One that is down has of CRDs, which are no release's but the cluster's, what the first
// server has: what was deleted meanwhile could not be listed, and so no namespace be deleted.
func (s *localState) all(first *localState) versions {
	all := maps.Clone(s.groups)
	for gv, doc := range first.groups {
		if s.failed && !first.failed && all[gv] != nil && !builtin.Group(gv.Group) {
			all[gv] = doc
		}
	}
	maps.Copy(all, byGroupVersion(s.core))
	return all
}

// add adds what a server has and those before it lack. What only servers have that were down for too long is Stale.
func (all versions) add(s, first *localState, m *merge) {
	// A kube-apiserver that starts deletes what it does not know (autoregister): an older one, or one with other flags.
	older := !first.failed && documents.Newer(s.release, first.release) > 0
	for gv, doc := range s.all(first) {
		known := all[gv]
		m.lost[gv] = s.failed && (older || !builtin.Group(gv.Group)) && (known == nil || m.lost[gv])
		if s.failed && m.staleAfter > 0 && m.goesStale(s.confirmed) {
			stale := *doc
			stale.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
			doc = &stale
		}
		if known == nil {
			all[gv] = doc
			continue
		}
		both := united([]served{{doc: known}, {doc: doc}})
		if both.Freshness != known.Freshness || size(both) > size(known) { // else the same pointer stays
			all[gv] = both
		}
	}
}

func size(doc *apidiscoveryv2.APIVersionDiscovery) int {
	n := len(doc.Resources)
	for i := range doc.Resources {
		n += len(doc.Resources[i].Subresources)
	}
	return n
}

// lacking returns what not all servers serve, and who does. The legacy document of a group-version is that of servers
// that have most of it: whoever reads no other would miss resources of another release, which are served.
func lacking(all []*localState) map[schema.GroupVersionResource][]string {
	by, most := make(map[schema.GroupVersionResource][]string), make(map[schema.GroupVersion]int)
	for _, s := range all {
		for gv, doc := range s.all(all[0]) {
			legacy := schema.GroupVersionResource{Resource: (&registry.Entry{GroupVersion: gv}).Path()}
			switch n := size(doc); {
			case n > most[gv] && !s.failed || by[legacy] == nil:
				by[legacy], most[gv] = []string{s.server}, n
			case n == most[gv]:
				by[legacy] = append(by[legacy], s.server)
			}
			keys := []schema.GroupVersionResource{gv.WithResource("")}
			for _, r := range doc.Resources {
				keys = append(keys, gv.WithResource(r.Resource))
				for _, sub := range r.Subresources {
					keys = append(keys, gv.WithResource(r.Resource+"/"+sub.Subresource))
				}
			}
			for _, k := range keys {
				by[k] = append(by[k], s.server)
			}
		}
	}
	maps.DeleteFunc(by, func(_ schema.GroupVersionResource, of []string) bool { return len(of) == len(all) })
	return by
}
