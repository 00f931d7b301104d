package registry

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/latest"
)

// kind is one of the kinds of objects that the table is made from.
type kind uint8

const (
	kindAPIService kind = iota
	kindService
	kindSlice
	kinds
)

// key names an object.
type key struct {
	kind kind
	name types.NamespacedName
}

// reportKey names an endpoint of an APIService.
type reportKey struct{ name, address string }

// changes is where sources and prober leave what is new until the writer takes it. Only the last state of each object is kept, so it is bounded
// by the number of objects and endpoints however fast they change.
type changes struct {
	// signal holds a token while there is something to take.
	signal chan struct{}

	mu sync.Mutex // guards what follows
	batch
}

// batch is what the writer takes at once.
type batch struct {
	// objects are the changed objects, nil when deleted.
	objects map[key]runtime.Object
	// replaced kinds have been read anew: what is not in objects is gone.
	replaced [kinds]bool
	reports  map[reportKey]Report
	problems []directory.Fault
	told     bool // problems has been set
	// shadowed are the definitions that APIServices hide.
	shadowed map[schema.GroupVersion]string
	looked   bool // shadowed has been set
}

func newChanges() *changes {
	return &changes{signal: make(chan struct{}, 1)}
}

// set notes the new state of an object, nil when it was deleted.
func (c *changes) set(k key, object runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setLocked(k, object)
	latest.Wake(c.signal)
}

func (c *changes) setLocked(k key, object runtime.Object) {
	if c.objects == nil {
		c.objects = make(map[key]runtime.Object)
	}
	c.objects[k] = object
}

// replace notes the complete set of objects of a kind.
func (c *changes) replace(what kind, objects map[types.NamespacedName]runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.objects {
		if k.kind == what {
			delete(c.objects, k)
		}
	}
	for name, object := range objects {
		c.setLocked(key{what, name}, object)
	}
	c.replaced[what] = true
	latest.Wake(c.signal)
}

// replaceAll notes the complete set of every kind at once, so that no table sees a new APIService without its new Service.
func (c *changes) replaceAll(objects []runtime.Object, problems []directory.Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects = make(map[key]runtime.Object, len(objects))
	for _, o := range objects {
		switch o := o.(type) {
		case *apiregistrationv1.APIService:
			c.objects[key{kindAPIService, types.NamespacedName{Name: o.Name}}] = o
		case *corev1.Service:
			c.objects[key{kindService, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}}] = o
		case *discoveryv1.EndpointSlice:
			c.objects[key{kindSlice, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}}] = o
		}
	}
	c.replaced = [kinds]bool{kindAPIService: true, kindService: true, kindSlice: true}
	c.problems, c.told = problems, true
	latest.Wake(c.signal)
}

// shadow notes which definitions of custom resources are hidden, by the group-versions that they serve.
func (c *changes) shadow(definitions map[schema.GroupVersion]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shadowed, c.looked = definitions, true
	latest.Wake(c.signal)
}

// report notes a verdict.
func (c *changes) report(r Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reports == nil {
		c.reports = make(map[reportKey]Report)
	}
	c.reports[reportKey{r.Name, r.Address}] = r
	latest.Wake(c.signal)
}

// reported reports whether a verdict about the endpoint waits to be taken.
func (c *changes) reported(r Report) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.reports[reportKey{r.Name, r.Address}]
	return ok
}

// take empties the changes.
func (c *changes) take() batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.batch
	c.batch = batch{}
	return b
}

// objects are the writer's own: the watch's store, and the only one.
type objects struct {
	apiServices map[string]*apiregistrationv1.APIService
	services    map[types.NamespacedName]*corev1.Service
	slices      map[types.NamespacedName]*discoveryv1.EndpointSlice
	// grouped are the slices by Service. A list is replaced, never changed: Build compares lists by identity.
	grouped map[types.NamespacedName][]*discoveryv1.EndpointSlice
	// users are the APIServices that name a Service.
	users    map[types.NamespacedName][]string
	touched  map[string]struct{} // what apply has found changed: see Input.Touched
	read     [kinds]bool
	problems []directory.Fault
	shadowed map[schema.GroupVersion]string
}

func newObjects() *objects {
	return &objects{
		apiServices: make(map[string]*apiregistrationv1.APIService),
		services:    make(map[types.NamespacedName]*corev1.Service),
		slices:      make(map[types.NamespacedName]*discoveryv1.EndpointSlice),
		grouped:     make(map[types.NamespacedName][]*discoveryv1.EndpointSlice),
		users:       make(map[types.NamespacedName][]string),
	}
}

// complete reports whether every kind has been read once.
func (o *objects) complete() bool {
	return o.read[kindAPIService] && o.read[kindService] && o.read[kindSlice]
}

// apply brings a batch in.
func (o *objects) apply(b *batch) {
	o.touched = make(map[string]struct{})
	if b.replaced[kindAPIService] {
		for name := range o.apiServices {
			if !b.has(kindAPIService, types.NamespacedName{Name: name}) {
				o.setAPIService(name, nil)
			}
		}
	}
	if b.replaced[kindService] {
		for name := range o.services {
			if !b.has(kindService, name) {
				o.setService(name, nil)
			}
		}
	}
	if b.replaced[kindSlice] {
		for name := range o.slices {
			if !b.has(kindSlice, name) {
				o.setSlice(name, nil)
			}
		}
	}
	for k, object := range b.objects {
		switch k.kind {
		case kindAPIService:
			a, _ := object.(*apiregistrationv1.APIService)
			o.setAPIService(k.name.Name, a)
		case kindService:
			s, _ := object.(*corev1.Service)
			o.setService(k.name, s)
		case kindSlice:
			s, _ := object.(*discoveryv1.EndpointSlice)
			o.setSlice(k.name, s)
		}
	}
	for i, r := range b.replaced {
		o.read[i] = o.read[i] || r
	}
	if b.told {
		o.problems = b.problems
	}
	if b.looked {
		o.setShadowed(b.shadowed)
	}
}

func (o *objects) touch(apiServices ...string) {
	for _, name := range apiServices {
		o.touched[name] = struct{}{}
	}
}

// setAPIService replaces an APIService, nil to delete it. One whose name is not that of its group-version is none: the API's validation lets nobody write it, and
// it would be found by neither.
func (o *objects) setAPIService(name string, a *apiregistrationv1.APIService) {
	if a != nil && name != a.Spec.Version+"."+a.Spec.Group {
		a = nil
	}
	old := o.apiServices[name]
	if old == a {
		return
	}
	o.touch(name)
	// A list that is read anew has other pointers with the same Services.
	if was, is := serviceOf(old), serviceOf(a); was != is {
		if o.users[was] = slices.DeleteFunc(o.users[was], func(user string) bool { return user == name }); len(o.users[was]) == 0 {
			delete(o.users, was)
		}
		o.users[is] = append(o.users[is], name)
		delete(o.users, types.NamespacedName{}) // of those that have none
	}
	if a == nil {
		delete(o.apiServices, name)
		return
	}
	o.apiServices[name] = a
}

// serviceOf is an APIService's Service. Zero: it has none, or there is no APIService.
func serviceOf(a *apiregistrationv1.APIService) types.NamespacedName {
	if a == nil || a.Spec.Service == nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: a.Spec.Service.Namespace, Name: a.Spec.Service.Name}
}

// setService replaces a Service, nil to delete it.
func (o *objects) setService(name types.NamespacedName, s *corev1.Service) {
	if o.services[name] != s {
		o.touch(o.users[name]...)
	}
	if s == nil {
		delete(o.services, name)
		return
	}
	o.services[name] = s
}

// setShadowed replaces what is known of hidden definitions.
func (o *objects) setShadowed(shadowed map[schema.GroupVersion]string) {
	for _, side := range []map[schema.GroupVersion]string{o.shadowed, shadowed} {
		for gv := range side {
			if o.shadowed[gv] != shadowed[gv] {
				o.touch(gv.Version + "." + gv.Group)
			}
		}
	}
	o.shadowed = shadowed
}

func (b *batch) has(what kind, name types.NamespacedName) bool {
	object, ok := b.objects[key{what, name}]
	return ok && object != nil
}

// setSlice replaces a slice, nil to delete it, in the list of its Service.
func (o *objects) setSlice(name types.NamespacedName, s *discoveryv1.EndpointSlice) {
	old := o.slices[name]
	if old == s {
		return // its list is still the same, and so is every entry that was made from it
	}
	if old != nil {
		o.regroup(owner(old), old.Name, nil)
	}
	if s == nil {
		delete(o.slices, name)
		return
	}
	o.slices[name] = s
	o.regroup(owner(s), s.Name, s)
}

// regroup makes the list of one Service anew, without the named slice and with s. It is kept in the order of names, so that the table does not
// depend on the order of events.
func (o *objects) regroup(service types.NamespacedName, name string, s *discoveryv1.EndpointSlice) {
	o.touch(o.users[service]...)
	old := o.grouped[service]
	list := make([]*discoveryv1.EndpointSlice, 0, len(old)+1)
	for _, other := range old {
		if other.Name != name {
			list = append(list, other)
		}
	}
	if s != nil {
		at, _ := slices.BinarySearchFunc(list, name, func(e *discoveryv1.EndpointSlice, name string) int {
			return strings.Compare(e.Name, name)
		})
		list = slices.Insert(list, at, s)
	}
	if len(list) == 0 {
		delete(o.grouped, service)
		return
	}
	o.grouped[service] = list
}

// owner is the Service that a slice belongs to.
func owner(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}
