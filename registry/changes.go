package registry

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

type kind uint8

const (
	kindAPIService kind = iota
	kindService
	kindSlice
	kindFallback // the directory's APIServices where etcd's, kindAPIService, come first
	// kindServed are what the local apiserver serves: Local, but for what it sends to Fairlead. They come last.
	kindServed
	// kindFallbackService and kindFallbackSlice are a cluster's, and count if the directory has neither of that name.
	kindFallbackService
	kindFallbackSlice
	kindPolicy // the policy, of which there is one, if any
	kinds
)

type key struct {
	kind kind
	name types.NamespacedName
}

// reportKey names an endpoint of an APIService's Backend: a late report must not replace that about a successor.
type reportKey struct {
	name, address string
	of            *Backend
}

// changes collects the news of the sources and the prober until the writer takes them. Only the last state of each
// object is kept, so the number of objects and endpoints bounds it, independently of the rate of changes.
type changes struct {
	signal chan struct{} // holds a token for Registry.write while there are changes

	mu sync.Mutex // guards batch
	batch
}

// batch is the set of changes that the writer takes at once.
type batch struct {
	objects  map[key]runtime.Object // those that have changed, nil when deleted
	bundles  bundles                // large ones of those that have changed, also of states that others have replaced
	replaced [kinds]bool            // kinds that have been relisted: what is not in objects is gone
	reports  map[reportKey]Report
	problems []directory.Fault
	// files has the directory's APIServices by name. Nil means that it was not read again, nor are problems new.
	files map[string]directory.Object
	// policy is the last valid one, and policyFaults what is wrong with a newer one. Nil: it was not read again.
	policy       *routings
	policyFaults []directory.Fault
	// shadowed are the definitions that APIServices shadow. Nil means that they are as before.
	shadowed map[schema.GroupVersion]string
}

func newChanges() *changes { return &changes{signal: make(chan struct{}, 1), batch: newBatch()} }

func newBatch() batch {
	return batch{objects: make(map[key]runtime.Object), bundles: make(bundles), reports: make(map[reportKey]Report)}
}

// largeBundle is the size in bytes above which PEM is parsed in advance: it takes a millisecond. Smaller ones are not:
// of a relist or a reread directory most are unchanged, and the table has them.
const largeBundle = 16 << 10

// record adds to the batch, and then objects, nil for one that was deleted; and wakes the writer. It parses their large
// bundles, for which the writer has no time: one of 1 MiB takes 60 ms.
func (c *changes) record(objects map[key]runtime.Object, add func(*batch)) {
	parsed := make(bundles)
	for _, o := range objects {
		if a, ok := o.(*apiregistrationv1.APIService); ok {
			for _, raw := range [][]byte{a.Spec.CABundle, []byte(a.Annotations[behind.Bundle])} {
				if len(raw) > largeBundle {
					parsed.parse(raw)
				}
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	add(&c.batch)
	maps.Copy(c.objects, objects)
	maps.Copy(c.bundles, parsed)
	latest.Wake(c.signal)
}

// set records the new state of an object. Nil means deleted.
func (c *changes) set(k key, object runtime.Object) {
	c.record(map[key]runtime.Object{k: object}, func(*batch) {})
}

// replace records the complete set of objects of a kind.
func (c *changes) replace(what kind, objects map[types.NamespacedName]runtime.Object) {
	all := make(map[key]runtime.Object, len(objects))
	for name, object := range objects {
		all[key{what, name}] = object
	}
	c.record(all, func(b *batch) { b.empty(what) })
}

// empty drops the objects of a kind before a complete set is recorded.
func (b *batch) empty(what kind) {
	maps.DeleteFunc(b.objects, func(k key, _ runtime.Object) bool { return k.kind == what })
	b.replaced[what] = true
}

// replaceAll records the whole directory at once: a new APIService comes with its new Service. as is the former's kind.
func (c *changes) replaceAll(as kind, objects []directory.Object, problems []directory.Fault) {
	all, files := make(map[key]runtime.Object, len(objects)), make(map[string]directory.Object)
	for _, o := range objects {
		what, name := as, types.NamespacedName{Namespace: o.Value.GetNamespace(), Name: o.Value.GetName()}
		switch o.Value.(type) {
		case *apiregistrationv1.APIService:
			files[name.Name] = o
		case *corev1.Service:
			what = kindService
		case *discoveryv1.EndpointSlice:
			what = kindSlice
		case *policy.Policy:
			problems = append(slices.Clip(problems),
				o.Fault("it is not used: --policy names the file or directory of policies"))
			continue
		}
		all[key{what, name}] = o.Value
	}
	c.record(all, func(b *batch) {
		for _, what := range []kind{as, kindService, kindSlice} {
			b.empty(what)
		}
		b.problems, b.files = problems, files
	})
}

func (c *changes) take() batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.batch
	c.batch = newBatch()
	return b
}

// objects is the writer's store of all objects. There is no other copy.
type objects struct {
	all         [kinds]map[types.NamespacedName]runtime.Object         // also those that do not count
	apiServices map[string]*apiregistrationv1.APIService               // those that count
	misnamed    map[types.NamespacedName]*apiregistrationv1.APIService // of kindAPIService
	several     sets.Set[types.NamespacedName]                         // APIServices of more than one kind
	services    [kinds]map[types.NamespacedName]*corev1.Service        // of the two kinds of Services
	// grouped are the slices of both kinds, by Service and ordered by name: the order of events does not matter.
	grouped  [kinds]map[types.NamespacedName][]*discoveryv1.EndpointSlice
	users    map[types.NamespacedName][]string // the APIServices that name a Service
	touched  sets.Set[string]                  // see Input.Touched
	awaited  []kind                            // kinds to be read before the table is complete
	read     [kinds]bool
	problems []directory.Fault
	files    map[string]directory.Object // see batch
	shadowed map[schema.GroupVersion]string
	policy   *routings
	next     *routings         // the last policy. Nil: none was read
	amiss    []directory.Fault // of it
}

// newObjects makes an empty store, complete once the kinds of every source and of more were read.
func newObjects(more ...kind) *objects {
	o := &objects{
		apiServices: make(map[string]*apiregistrationv1.APIService),
		misnamed:    make(map[types.NamespacedName]*apiregistrationv1.APIService),
		several:     sets.New[types.NamespacedName](),
		users:       make(map[types.NamespacedName][]string),
		awaited:     append([]kind{kindAPIService, kindService, kindSlice}, more...),
		policy:      &routings{},
	}
	for what := range o.all {
		o.all[what] = make(map[types.NamespacedName]runtime.Object)
		o.services[what] = make(map[types.NamespacedName]*corev1.Service)
		o.grouped[what] = make(map[types.NamespacedName][]*discoveryv1.EndpointSlice)
	}
	return o
}

func (o *objects) apply(b *batch) {
	o.touched = sets.New[string]()
	for what, whole := range b.replaced {
		if !whole {
			continue
		}
		o.read[what] = true
		for name := range o.all[what] {
			if b.objects[key{kind(what), name}] == nil {
				o.set(key{kind(what), name}, nil)
			}
		}
	}
	for k, object := range b.objects {
		o.set(k, object)
	}
	if b.files != nil {
		o.problems, o.files = b.problems, b.files
	}
	if b.policy != nil {
		o.next, o.amiss = b.policy, b.policyFaults
	}
	// One that selects by namespaces' labels waits for these: nothing would match. The former is in force until then.
	if o.next != nil && (o.next.labels == nil || o.next.known.Listed.Load()) {
		o.policy, o.read[kindPolicy] = o.next, true
	}
	if b.shadowed != nil {
		for _, side := range []map[schema.GroupVersion]string{o.shadowed, b.shadowed} {
			for gv := range side {
				if o.shadowed[gv] != b.shadowed[gv] {
					o.touched.Insert(gv.Version + "." + gv.Group)
				}
			}
		}
		o.shadowed = b.shadowed
	}
}

// set replaces an object. Nil deletes it.
func (o *objects) set(k key, object runtime.Object) {
	old := o.all[k.kind][k.name]
	keep(o.all[k.kind], k.name, object)
	switch k.kind {
	case kindAPIService, kindFallback, kindServed:
		o.use(k.name)
	case kindService, kindFallbackService:
		if old != object {
			o.touchUsers(k.name)
		}
		s, _ := object.(*corev1.Service)
		keep(o.services[k.kind], k.name, s)
	case kindSlice, kindFallbackSlice:
		was, _ := old.(*discoveryv1.EndpointSlice)
		is, _ := object.(*discoveryv1.EndpointSlice)
		if was == is {
			return
		}
		if was != nil && (is == nil || owner(was) != owner(is)) {
			o.regroup(k.kind, owner(was), was.Name, nil)
		}
		if is != nil {
			o.regroup(k.kind, owner(is), is.Name, is)
		}
	}
}

// keep replaces an object in a map. Nil deletes it.
func keep[K, V comparable](in map[K]V, name K, object V) {
	var none V
	if object == none {
		delete(in, name)
		return
	}
	in[name] = object
}

func (o *objects) apiService(what kind, name types.NamespacedName) *apiregistrationv1.APIService {
	a, _ := o.all[what][name].(*apiregistrationv1.APIService)
	return a
}

func (o *objects) touchUsers(service types.NamespacedName) {
	o.touched.Insert(o.users[service]...)
	o.touched.Insert(o.policy.users[service]...)
}

// use finds the APIService of a name that counts, of the first kind that has one. A misnamed one
// does not: the API does not admit it, and lookups would not find it by its name or group-version.
func (o *objects) use(of types.NamespacedName) {
	var a *apiregistrationv1.APIService
	delete(o.misnamed, of)
	delete(o.several, of)
	for _, what := range []kind{kindServed, kindFallback, kindAPIService} {
		switch found := o.apiService(what, of); {
		case found == nil:
		case !misnamed(found):
			if a != nil {
				o.several.Insert(of)
			}
			a = found
		case what == kindAPIService:
			o.misnamed[of] = found
		}
	}
	name, old := of.Name, o.apiServices[of.Name]
	if old == a {
		return
	}
	o.touched.Insert(name)
	// After a relist the pointers differ, but the Services are the same.
	if was, is := serviceOf(old), serviceOf(a); was != is {
		o.users[was] = slices.DeleteFunc(o.users[was], func(user string) bool { return user == name })
		if len(o.users[was]) == 0 {
			delete(o.users, was)
		}
		o.users[is] = append(o.users[is], name)
		delete(o.users, types.NamespacedName{}) // APIServices without a Service
	}
	keep(o.apiServices, name, a)
}

// misnamed reports whether a name is not that of the group-version, or cannot be taken apart: no version has a dot.
func misnamed(a *apiregistrationv1.APIService) bool {
	return a != nil && (a.Name != a.Spec.Version+"."+a.Spec.Group || strings.Contains(a.Spec.Version, "."))
}

const inEtcd = "APIService " // the prefix of Fault.File for objects that are in no file

// faults returns the source's faults, one for each ignored object, and those of what several have, by file and line.
func (o *objects) faults() []directory.Fault {
	list := slices.Concat(o.problems, o.amiss, o.policy.unknown(o.apiServices))
	for name, a := range o.misnamed {
		why := "its name is not that of its group-version, or its version has a dot"
		for _, c := range a.Status.Conditions {
			why = c.Message // the server of the object knows more
		}
		list = append(list, directory.Fault{File: inEtcd + name.Name, Message: why})
	}
	ignored := func(name types.NamespacedName, whose string) {
		list = append(list, directory.Fault{
			File: inEtcd + name.Name, Message: whose + " has one, too, which is ignored: etcd's counts", Note: true,
		})
	}
	for name := range o.several {
		counts, file := o.apiServices[name.Name], o.files[name.Name]
		if a := o.apiService(kindFallback, name); a != nil && counts != a && claimant(a)+claimant(counts) != "" {
			ignored(name, "the directory")
		}
		theirs, claim := o.apiService(kindServed, name), claimant(counts)
		if theirs == nil || claim == "" {
			continue
		}
		switch automanaged := theirs.Labels[directory.Automanaged] != ""; {
		case file.Value == counts && automanaged:
			list = append(list, file.Fault("the local apiserver serves it too, and "+claim+" claims it"))
		case file.Value == counts: // somebody has made both
			note := file.Fault("the cluster has one, too, which is ignored: the directory's counts")
			note.Note = true
			list = append(list, note)
		case !automanaged: // else shadows reports it
			ignored(name, "the cluster")
		}
	}
	slices.SortStableFunc(list, func(a, b directory.Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return list
}

// serviceOf returns the name of an APIService's Service. It is zero if a is nil or has no Service.
func serviceOf(a *apiregistrationv1.APIService) types.NamespacedName {
	if a == nil {
		return types.NamespacedName{}
	}
	return nameOf(behind.Server(a))
}

// regroup replaces the named slice of a Service by s. Nil deletes it. A Service may have thousands.
func (o *objects) regroup(what kind, service types.NamespacedName, name string, s *discoveryv1.EndpointSlice) {
	o.touchUsers(service)
	list := o.grouped[what][service]
	at, found := slices.BinarySearchFunc(list, name, func(e *discoveryv1.EndpointSlice, name string) int {
		return strings.Compare(e.Name, name)
	})
	switch {
	case found && s != nil:
		list[at] = s
	case found:
		list = slices.Delete(list, at, at+1)
	case s != nil:
		list = slices.Insert(list, at, s)
	}
	if o.grouped[what][service] = list; len(list) == 0 {
		delete(o.grouped[what], service)
	}
}

func owner(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}
