package registry

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/registry/builtin"
	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// apiregistration is the group of APIServices themselves. None can redirect it: in kube-apiserver
// its handlers precede the aggregator, and with the dir: registry this process serves it.
const apiregistration = "apiregistration.k8s.io"

const defaultPort = 443 // of spec.service.port (v1 defaulting)

// kept is what Build remembers of an entry, and nobody else reads.
type kept struct {
	ca         *parsedBundle // the object's parsed caBundle. Nil means none
	ownedUntil time.Time     // when the Backend loses the Owner that it has because its CA was replaced. Zero: none
}

// Build makes the table that follows prev. It is pure: the same input and prev make the same table. If no reader can
// see a change, it returns prev itself. Unchanged Entries and Backends keep their pointers. A nil prev means none.
func Build(in Input, prev *Table) *Table {
	b := builder{
		in: &in, prev: cmp.Or(prev, &Table{}), groups: make(map[string]*Group), gone: make(map[*Entry]bool),
		reports: make(map[string][]Report), bundles: make(bundles),
	}
	maps.Copy(b.bundles, in.bundles)
	b.options = cmp.Or(in.Options, b.prev.options, &Options{})
	in.policy = cmp.Or(in.policy, b.prev.policy, &routings{})
	b.settings = b.options.defaults()
	for _, r := range in.Reports {
		b.reports[r.Name] = append(b.reports[r.Name], r)
	}
	b.keep()
	return b.table(prev)
}

type builder struct {
	in      *Input
	prev    *Table
	options *Options

	settings Settings            // the defaults
	reports  map[string][]Report // :: APIService → its reports
	bundles  bundles

	interned  int                  // how often intern was called
	made      []*Backend           // by its first calls
	backends  map[Backend]*Backend // made after fewInterned calls
	rebuildAt time.Time            // the earliest ownedUntil

	entries []*Entry          // those of prev; nil for an entry that is gone or has moved
	fresh   []*Entry          // new and moved entries, unordered
	groups  map[string]*Group // groups with a changed entry
	gone    map[*Entry]bool   // entries that leave them
	moved   bool              // an entry came, went or changed its place
}

// keep copies the entries of prev, in order, and revises those that may have changed.
func (b *builder) keep() {
	b.entries = slices.Clone(b.prev.entries)
	names := b.in.Touched.Clone()
	for name := range b.reports {
		names.Insert(mainOf(name))
	}
	switch {
	case b.in.Touched == nil || !b.prev.complete || !b.in.Complete ||
		b.in.policy != b.prev.policy || b.options != b.prev.options:
		names = sets.KeySet(b.in.APIServices)
		for _, e := range b.prev.entries {
			names.Insert(e.Name)
		}
	case !b.prev.rebuildAt.IsZero() && !b.in.Now.Before(b.prev.rebuildAt): // revise sets the next one
		for _, e := range b.prev.servers {
			if !e.kept.ownedUntil.IsZero() || e.StandIn != nil {
				names.Insert(mainOf(e.Name))
			}
		}
	default:
		b.rebuildAt = b.prev.rebuildAt
	}
	for name := range names {
		b.revise(name)
	}
}

// revise makes the entry of an APIService anew, if it is still there, and notes what that changes.
func (b *builder) revise(name string) {
	var now *Entry
	old := b.prev.named(name)
	if object := b.in.APIServices[name]; object != nil {
		now = b.entry(object, nil, old)
	}
	if now == old {
		return
	}
	b.regroup(old, now)
	if old != nil {
		at, _ := slices.BinarySearchFunc(b.prev.entries, old, compareLegacy)
		if now != nil && compareLegacy(now, old) == 0 && now.GroupVersion == old.GroupVersion {
			b.entries[at] = now
			return
		}
		b.entries[at] = nil
	}
	b.moved = true
	if now != nil {
		b.fresh = append(b.fresh, now)
	}
}

func (b *builder) table(prev *Table) *Table {
	if prev != nil && len(b.groups) == 0 && prev.complete == b.in.Complete && prev.rebuildAt.Equal(b.rebuildAt) &&
		prev.policy == b.in.policy && slices.Equal(prev.problems, b.in.Problems) {
		return prev
	}
	t := &Table{
		generation: b.prev.generation + 1, complete: b.in.Complete, superseded: make(chan struct{}),
		entries: b.entries, byGroup: b.prev.byGroup, problems: slices.Clone(b.in.Problems),
		options: b.options, rebuildAt: b.rebuildAt, policy: b.in.policy,
	}
	if b.moved {
		t.entries = merge(b.entries, b.fresh, compareLegacy)
	}
	b.arrange(t)
	return t
}

// entry makes an entry, or returns old if the result would be equal.
func (b *builder) entry(object *apiregistrationv1.APIService, rule *policy.Rule, old *Entry) *Entry {
	e := &Entry{
		Name: object.Name, Object: object, Rule: rule, kept: &kept{},
		GroupVersion: schema.GroupVersion{Group: object.Spec.Group, Version: object.Spec.Version},
	}
	if old != nil {
		*e.kept, e.outages = *old.kept, old.outages
	}
	s := readAnnotations(object.Annotations, b.settings)
	e.Settings, e.Problems = s.settings, s.problems
	if rule == nil { // those of a policy were checked when it was compiled
		s.urls.check(b.options, behind.Server(object), s.caFrom)
	}
	switch {
	case isLocal(object):
		b.local(e)
	case e.GroupVersion.Group == apiregistration:
		b.local(e)
		e.Problems = append(e.Problems, "group "+apiregistration+" is always served here: the service is ignored")
	case b.options.Protects(e.GroupVersion.Group):
		b.protected(e, &s, old)
	default:
		b.remote(e, &s, old)
		if shadowed := b.in.Shadowed[e.GroupVersion]; shadowed != "" {
			e.Problems = append(e.Problems, fmt.Sprintf(
				"it hides CustomResourceDefinition %s: %s has taken over %s, "+
					"and the objects of the definition cannot be reached", shadowed, claimant(object), e.GroupVersion))
		}
	}
	if e.Backend == nil {
		e.kept.ownedUntil = time.Time{}
	}
	switch status := e.Verdict.Status; {
	case old != nil && old.Verdict.Status == status:
		e.Verdict.Since = old.Verdict.Since
	case status != "":
		e.Verdict.Since = b.in.Now
	}
	// As upstream, only the step from available to unavailable counts.
	at := slices.Index(unavailableReasons[:], e.Verdict.Reason)
	if at >= 0 && old != nil && old.Verdict.Available() && !e.Verdict.Available() {
		e.outages[at]++
	}
	b.route(e, old)
	if old != nil && unchanged(old, e) {
		*old.kept = *e.kept
		return old
	}
	return e
}

// isLocal reports whether the local apiserver serves the APIService: it names no URL, and either no Service or the
// apiserver's own. Upstream has the same special case (loopback resolver, pkg/apiserver/resolvers.go). Without it,
// Fairlead would call itself through the cluster's Service.
func isLocal(object *apiregistrationv1.APIService) bool {
	_, byURL := object.Annotations[urlAnnotation]
	ref := behind.Server(object)
	own := types.NamespacedName{Namespace: "default", Name: "kubernetes"}
	return !byURL && (ref == nil || nameOf(ref) == own && ptr.Deref(ref.Port, defaultPort) == defaultPort)
}

func (b *builder) local(e *Entry) {
	const message = "Local APIServices are always available"
	e.Verdict = Verdict{Status: corev1.ConditionTrue, Reason: ReasonLocal, Message: message}
	if e.Settings.Maintenance != "" {
		e.Settings.Maintenance = "" // requests to the local apiserver need no verdict
		e.Problems = append(e.Problems, "annotation "+prefix+"maintenance: it has no effect on a Local APIService")
	}
}

// protected fills an entry whose remote claims a protected group. In kubernetes mode the entry
// keeps its Backend, so that it does not count as Local (the local apiserver's own aggregator would
// obey the claim, unless the claim is a URL), but has no endpoints, so that it is never dialled.
func (b *builder) protected(e *Entry, s *annotated, old *Entry) {
	name := cmp.Or(e.GroupVersion.Group, "core")
	message := "group " + name + " is protected: " + claimant(e.Object) + " may not serve it"
	e.Verdict = fault(ReasonProtectedGroup, "%s", message)
	e.Problems = append(e.Problems, message)
	if !b.options.Directory && behind.Server(e.Object) != nil {
		e.Backend = b.backend(e, s, old)
	}
}

// SameService reports whether two backends differ only in trust and protocol, or only in URLs, which are as endpoints.
func (b *Backend) SameService(other *Backend) bool {
	return b.URLs != "" && other.URLs != "" ||
		b.Namespace == other.Namespace && b.Service == other.Service && b.Port == other.Port
}

// unchanged reports whether the two entries are equal for readers of the table.
func unchanged(a, b *Entry) bool {
	return a.Name == b.Name && a.GroupVersion == b.GroupVersion && a.Backend == b.Backend &&
		a.Front == b.Front && a.FrontSays == b.FrontSays && a.Verdict == b.Verdict &&
		a.Hidden == b.Hidden && a.StandIn == b.StandIn && a.Rule == b.Rule && slices.Equal(a.Further, b.Further) &&
		slices.Equal(a.Endpoints, b.Endpoints) && slices.Equal(a.Problems, b.Problems) &&
		reflect.DeepEqual(&a.Settings, &b.Settings) && !b.Edited(a)
}

// Edited reports whether a user has changed the object. It ignores resourceVersion, managed fields
// and the status, which kube-apiserver's own availability controllers write whenever they disagree.
func (e *Entry) Edited(before *Entry) bool {
	a, b := before.Object, e.Object
	return a != b && (a.UID != b.UID || !reflect.DeepEqual(&a.Spec, &b.Spec) || !maps.Equal(a.Labels, b.Labels) ||
		!maps.Equal(a.Annotations, b.Annotations) || !a.DeletionTimestamp.Equal(b.DeletionTimestamp))
}

// Input is everything that Build reads. Build modifies none of it. APIServices must not be modified
// after they were passed to Build: entries refer to them. All else may be, between builds.
type Input struct {
	// APIServices by name, which is that of their group-version: their source has validated them.
	APIServices map[string]*apiregistrationv1.APIService
	// Services by name.
	Services map[types.NamespacedName]*corev1.Service
	// Slices by the Service that they belong to (label kubernetes.io/service-name).
	Slices map[types.NamespacedName][]*discoveryv1.EndpointSlice
	// FallbackServices and FallbackSlices count if Services and Slices lack the name. Nil: none.
	FallbackServices map[types.NamespacedName]*corev1.Service
	FallbackSlices   map[types.NamespacedName][]*discoveryv1.EndpointSlice
	// Touched names the APIServices of which an object has changed since prev: the APIService, its Service, a slice, or
	// a CustomResourceDefinition that it shadows. Build then skips all others. Nil means that any may have changed.
	Touched sets.Set[string]
	Reports []Report // the prober's reports since prev. Earlier ones are carried over from prev
	// Shadowed are CustomResourceDefinitions of group-versions that are claimed for a remote.
	Shadowed map[schema.GroupVersion]string
	policy   *routings // nil means that of prev, else none
	bundles  bundles   // parsed in advance
	// Options are the settings. Nil means prev's, else the defaults. With another pointer than prev's, all is rebuilt.
	Options  *Options
	Problems []directory.Fault // the faults of the source that belong to no entry. See Table.Problems
	Complete bool              // every source has been read once
	Now      time.Time         // the current time, for Since and for the overlap of a replaced CA
}

// Options are the settings of Build. The zero value means the documented defaults.
type Options struct {
	// ClusterIPRouting sends requests to a Service's ClusterIP, not its endpoints (--enable-aggregator-routing=false).
	ClusterIPRouting bool
	// Reach says which addresses endpoints and external names may have. Config.Directory implies
	// its AllowLoopback, unless Config.Cluster or Config.APIServices is set.
	Reach     reach.Rules
	Zone      string // this replica's. Empty means that it is unknown, and that the hints of endpoints do not count
	AllowURLs bool   // allows the annotation url. Config.Directory and Config.APIServices imply it
	// Front is Fairlead's own Service, to which the cluster's aggregator sends APIServices: none
	// may have it as its extension server. Zero means that none is known.
	Front types.NamespacedName
	// Directory selects the rules of the registries dir: and etcd:, where this process serves apiregistration.k8s.io
	// itself and a claim of a protected group is ignored, so that the group stays Local, rather than refused. New sets
	// it if Config.Directory or Config.APIServices is set.
	Directory bool
	// ProtectedGroups are the groups that no remote may claim, "" or "core" for the core group. Nil
	// means Kubernetes' built-in groups, empty but not nil means none.
	ProtectedGroups []string
	// Defaults are the settings of an APIService without annotations. Zero means: RequestTimeout 60 s, MaxInFlight 400,
	// MaxLongRunning 10,000, CAOverlap 1 min (negative: none), ProbeInterval 10 s, PingTimeout 5 s.
	Defaults Settings
}

// Protects reports whether no remote may claim the group: it would see every Secret, or answer SubjectAccessReviews.
func (o *Options) Protects(group string) bool {
	if o.ProtectedGroups == nil {
		return builtin.Group(group) || group == "extensions" // the group extensions is gone, but its name is reserved
	}
	return slices.Contains(o.ProtectedGroups, group) || group == "" && slices.Contains(o.ProtectedGroups, "core")
}
