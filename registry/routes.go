package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// For returns the entry of the backend for a request: of the first route that matches, else e, or its stand-in.
func (e *Entry) For(r *policy.Request) *Entry {
	for _, f := range e.Further {
		if f.Rule.Fails(r) == "" {
			return f
		}
	}
	return cmp.Or(e.StandIn, e)
}

// united reports whether several servers have the group-version, and one can be asked: else its document is 503.
func (e *Entry) united() bool {
	return e.Verdict.Available() && len(e.Further) > 0 ||
		slices.ContainsFunc(e.Further, func(f *Entry) bool { return f.Verdict.Available() })
}

type further struct {
	name   string
	rule   *policy.Rule
	object *apiregistrationv1.APIService // without name and group-version
}

type routing struct {
	at       directory.Fault // its place
	hidden   bool
	backends []*further
}

// routings are the compiled policy. They are immutable. Without a policy they are empty.
type routings struct {
	of    map[string]*routing               // :: APIService
	users map[types.NamespacedName][]string // :: Service → the APIServices of which it is a further backend
	// labels is the first backend that selects namespaces by labels. Nil means that none does.
	labels *directory.Fault
	known  *policy.Namespaces
	rules  *policy.Gates // nil means none

	bundles bundles // of the backends
}

func where(at directory.Fault) string { return fmt.Sprintf("%s:%d", at.File, at.Line) }

// unknown returns a fault for each route of an unknown APIService, by file and line, and one if labels are forbidden.
func (p *routings) unknown(known map[string]*apiregistrationv1.APIService) (faults []directory.Fault) {
	for name, r := range p.of {
		if known[name] == nil {
			at := r.at
			at.Message = at.Field + ".apiService: there is no APIService " + name
			faults = append(faults, at)
		}
	}
	slices.SortFunc(faults, func(a, b directory.Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Message, b.Message))
	})
	if p.labels != nil && p.known.Forbidden.Load() {
		at := *p.labels
		at.Message = at.Field + ".when.namespaceLabels: " +
			"the local apiserver forbids to list and watch namespaces, so none matches"
		faults = append(faults, at)
	}
	return faults
}

const (
	maxRoutes   = 1000   // of a policy: those of unknown APIServices are looked for with each new table
	maxRules    = 10_000 // of a policy: each has metrics
	maxBackends = 32     // of an APIService: each is probed, and compared with every request of it
)

// compile makes routings of what is valid of a policy's objects. Limits go on where prev's are.
func (o *Options) compile(objects []directory.Object, known *policy.Namespaces, prev *policy.Gates) (
	p *routings, faults []directory.Fault) {
	p = &routings{
		of: make(map[string]*routing), users: make(map[types.NamespacedName][]string),
		known: known, rules: policy.NewGates(prev), bundles: make(bundles),
	}
	for i := range objects {
		doc, ok := objects[i].Value.(*policy.Policy)
		if !ok {
			faults = append(faults, objects[i].Fault("a policy has only objects of kind Policy, fairlead.dev/v1"))
			continue
		}
		var wrong field.ErrorList
		routes, rules, hurt := doc.Routes, doc.Rules, make(map[string]bool) // paths that have a wrong field
		for _, f := range objects[i].Wrong {
			at, _, below := strings.Cut(f.Field, "].")
			if faults, hurt[at+"]"] = append(faults, f), true; !below || strings.HasPrefix(at, "items") {
				p.rules.Add(new(policy.AccessRule), "", nil, true) // it may hide one
			}
			if strings.HasPrefix(at, "items") { // of a List: it may be any route's
				routes = nil
			}
		}
		if n := len(p.of) + len(routes); n > maxRoutes {
			wrong, routes = append(wrong, field.TooMany(field.NewPath("routes"), n, maxRoutes)), nil
		}
		for j := range routes {
			at := field.NewPath("routes").Index(j)
			wrong = append(wrong, p.add(o, &objects[i], &routes[j], at, hurt[at.String()])...)
		}
		if n := len(p.rules.All()) + len(rules); n > maxRules {
			wrong = append(wrong, field.TooMany(field.NewPath("rules"), n, maxRules))
			rules = rules[:len(rules)+maxRules-n]
		}
		for j := range rules {
			at := field.NewPath("rules").Index(j)
			place := where(objects[i].FaultAt(at.String(), ""))
			wrong = append(wrong, p.rules.Add(&rules[j], place, at, hurt[at.String()])...)
		}
		for _, e := range wrong {
			faults = append(faults, objects[i].FaultAt(e.Field, e.ErrorBody()))
		}
	}
	maps.DeleteFunc(p.of, func(_ string, r *routing) bool { return !r.hidden && r.backends == nil }) // the faulty ones
	if p.rules.Compile(); len(p.rules.All()) == 0 {
		p.rules = nil
	}
	return p, faults
}

func (p *routings) add(o *Options, doc *directory.Object, r *policy.Route, at *field.Path, hurt bool) (
	wrong field.ErrorList) {
	version, group, _ := strings.Cut(r.APIService, ".")
	to := &routing{at: doc.FaultAt(at.String(), ""), hidden: r.Hidden}
	bad := func(why string) { wrong = append(wrong, field.Invalid(at.Child("apiService"), r.APIService, why)) }
	switch other := p.of[r.APIService]; {
	case version == "" || r.APIService == version:
		bad("it is not <version>.<group>, such as v1beta1.metrics.k8s.io")
	case other != nil:
		bad("it has a route at " + where(other.at))
	case group == "" || group == apiregistration:
		bad("the cluster cannot be without it")
	case r.Hidden == (len(r.Backends) > 0):
		wrong = append(wrong, field.Required(at.Child("backends"), "either backends, or hidden: true"))
	case len(r.Backends) > maxBackends:
		wrong = append(wrong, field.TooMany(at.Child("backends"), len(r.Backends), maxBackends))
	}
	p.of[r.APIService] = cmp.Or(p.of[r.APIService], to) // of two the first counts
	for i := range r.Backends {
		b, at := &r.Backends[i], at.Child("backends").Index(i)
		f, errs := p.further(o, b, at)
		if wrong = append(wrong, errs...); len(errs) > 0 {
			continue
		}
		if slices.ContainsFunc(to.backends, func(o *further) bool { return o.name == f.name }) {
			wrong = append(wrong, field.Duplicate(at.Child("name"), f.name))
		}
		place := doc.FaultAt(at.String(), "")
		f.rule, errs = b.Rule(where(place), at, p.known)
		wrong = append(wrong, errs...)
		if len(errs) == 0 && p.labels == nil && b.When != nil && b.When.NamespaceLabels != nil {
			p.labels = &place
		}
		to.backends = append(to.backends, f)
		if service := nameOf(b.Service); b.Service != nil && !slices.Contains(p.users[service], r.APIService) {
			p.users[service] = append(p.users[service], r.APIService)
		}
	}
	if hurt || len(wrong) > 0 { // half a route would send requests elsewhere
		*to = routing{at: to.at}
	}
	return wrong
}

func (p *routings) further(o *Options, b *policy.Backend, at *field.Path) (f *further, wrong field.ErrorList) {
	annotations := maps.Collect(maps.All(b.Annotations))
	for name, value := range map[string]string{"url": b.URL, "ca-from": b.CAFrom} {
		if value != "" {
			annotations[prefix+name] = value
		}
	}
	f = &further{name: b.Name, object: &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
		Spec: apiregistrationv1.APIServiceSpec{
			Service: b.Service, CABundle: b.CABundle, InsecureSkipTLSVerify: b.InsecureSkipTLSVerify,
		},
	}}
	bad := func(child, value, message string) {
		wrong = append(wrong, field.Invalid(at.Child(child), bounded(value), message))
	}
	var s annotated
	for _, k := range slices.Sorted(maps.Keys(annotations)) {
		name, ours := strings.CutPrefix(k, prefix)
		err := s.set(name, annotations[k])
		if !ours || strings.HasPrefix(name, "service") || name == "ca-bundle" || name == "insecure-skip-tls-verify" {
			err = fmt.Errorf("it is no setting of a backend")
		}
		if err != nil {
			wrong = append(wrong, field.Invalid(at.Child("annotations").Key(k), bounded(annotations[k]), err.Error()))
		}
	}
	s.urls.check(o, b.Service, s.caFrom)
	ca := p.bundles.parse(b.CABundle)
	switch {
	case b.Service == nil && b.URL == "":
		wrong = append(wrong, field.Required(at.Child("service"), "a service or a url"))
	case s.urls.fault != "":
		bad("url", b.URL, s.urls.fault)
	case b.Service != nil && (b.Service.Name == "" || b.Service.Namespace == ""):
		wrong = append(wrong, field.Required(at.Child("service"), "namespace and name"))
	case b.Service != nil && b.Service.Port != nil && len(validation.IsValidPortNum(int(*b.Service.Port))) > 0:
		bad("service", behind.Format(b.Service), "the port is not between 1 and 65535")
	case isLocal(f.object):
		bad("service", behind.Format(b.Service),
			"it is the local apiserver's: only extension servers can be further backends")
	case ca != nil && ca.unusable:
		bad("caBundle", "", ca.problem)
	case b.InsecureSkipTLSVerify && len(b.CABundle) > 0:
		bad("insecureSkipTLSVerify", "true", "not with caBundle")
	case f.name == "" && b.URL != "":
		wrong = append(wrong, field.Required(at.Child("name"), "clients see it in errors, and must not see the url"))
	case f.name == "":
		f.name = b.Service.Name
	}
	if errs := validation.IsDNS1123Subdomain(f.name); f.name != "" && len(errs) > 0 {
		bad("name", f.name, errs[0]) // or that of the Service
	}
	return f, wrong
}

func (b *builder) route(e, old *Entry) {
	r := b.in.policy.of[e.Name]
	if r == nil {
		return
	}
	if r.hidden {
		e.Hidden = where(r.at)
		return
	}
	if kind := e.Kind(); kind != "remote" {
		e.Problems = append(e.Problems, "its routes in the policy ("+where(r.at)+") are not used: it is "+kind)
		return
	}
	old = cmp.Or(old, &Entry{})
	var standing *Entry // that was old's StandIn
	for _, f := range r.backends {
		object := new(*f.object) // nothing of it is modified
		object.Name, object.UID = e.Name+"/"+f.name, e.Object.UID
		object.Spec.Group, object.Spec.Version = e.GroupVersion.Group, e.GroupVersion.Version
		object.Spec.GroupPriorityMinimum = e.Object.Spec.GroupPriorityMinimum
		object.Spec.VersionPriority = e.Object.Spec.VersionPriority
		var was *Entry
		if at := slices.IndexFunc(old.Further, func(f *Entry) bool { return f.Name == object.Name }); at >= 0 {
			was = old.Further[at]
		}
		e.Further = append(e.Further, b.entry(object, f.rule, was))
		if was != nil && was == old.StandIn {
			standing = e.Further[len(e.Further)-1]
		}
	}
	e.StandIn = b.standIn(e, standing)
}

// returnAfter is how long a backend must be back to get its requests from a standby: one that flaps moves its clients.
const returnAfter = 10 * time.Second

// standIn returns the standby that answers for an entry's own backend. Nil means that none does. Now, one that answers,
// stays, as long as it can, until the own backend has been back for returnAfter. Maintenance is 503 to all.
func (b *builder) standIn(e, now *Entry) *Entry {
	canStand := func(f *Entry) bool { return f.Rule.When == nil && f.Verdict.Available() }
	if now != nil && !canStand(now) {
		now = nil
	}
	switch v := e.Verdict; {
	case v.Reason == ReasonMaintenance:
		return nil
	case v.Available() && now != nil && !b.over(v.Since.Add(returnAfter)):
		return now
	case v.Available():
		return nil
	case v.Status != corev1.ConditionFalse || now != nil:
		return now
	}
	if at := slices.IndexFunc(e.Further, canStand); at >= 0 {
		return e.Further[at]
	}
	return nil
}

// mainOf returns the name of the APIService that an entry of this name belongs to.
func mainOf(name string) string {
	name, _, _ = strings.Cut(name, "/")
	return name
}
