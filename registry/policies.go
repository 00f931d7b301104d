package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// policies follow the policy. Its file must be valid at the start. Later, and of a ConfigMap, the last valid one stays.
type policies struct {
	of         *Registry
	files      *directory.Directory // nil means a ConfigMap
	ref        types.NamespacedName // of it
	options    Options
	namespaces *policy.Namespaces // nil means that there is no cluster
	unfollow   context.CancelFunc // ends follow, which keeps namespaces. Nil: no policy selects by their labels
	last       *routings          // the last valid one, and before that what is valid of one that is not
	valid      bool               // last is of a valid one
}

// SetPolicy sets the policy of a file, or says what is wrong with it. Unknown are its routes of missing APIServices.
func (in *Input) SetPolicy(objects []directory.Object) (faults, unknown []directory.Fault) {
	o := *in.Options
	o.AllowURLs = true // as for any file of this process
	if in.policy, faults = o.compile(objects, new(policy.Namespaces), nil); len(faults) > 0 {
		in.policy = &routings{}
	}
	return faults, in.policy.unknown(in.APIServices)
}

// newPolicies checks the policy's place, and a file's content. It returns nil for an empty one.
func newPolicies(r *Registry, from string) (p *policies, err error) {
	p = &policies{of: r, options: *r.options, last: &routings{}}
	if r.sources.cluster != nil {
		p.namespaces = new(policy.Namespaces)
	}
	name, inMap := strings.CutPrefix(from, "configmap:")
	switch namespace, name, ok := strings.Cut(name, "/"); {
	case from == "":
		return nil, nil //nolint:nilnil // there is none
	case inMap && (!ok || namespace == "" || name == "" || strings.Contains(name, "/")):
		return nil, fmt.Errorf("reading policy: %q is not configmap:NAMESPACE/NAME", from)
	case inMap:
		p.ref = types.NamespacedName{Namespace: namespace, Name: name}
		return p, nil
	}
	p.options.AllowURLs = true // who writes this process's files may choose where it connects
	if p.files, err = directory.New(directory.Config{Path: from, Files: true, Logger: r.log}); err != nil {
		return nil, fmt.Errorf("reading policy: %w", err)
	}
	objects, faults := directory.Load(from)
	_, wrong := p.options.compile(objects, p.namespaces, nil)
	for _, f := range append(faults, wrong...) {
		err = errors.Join(err, errors.New(f.String()))
	}
	if err != nil {
		return nil, fmt.Errorf("reading policy: %w", err)
	}
	return p, nil
}

func (p *policies) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	take := func(objects []directory.Object, faults []directory.Fault) { p.take(ctx, g, objects, faults) }
	g.Go(func() error {
		if p.files != nil {
			return p.files.Run(ctx, take)
		}
		//nolint:contextcheck // as in directory.Run
		changed := func(data map[string][]byte, err error) { take(p.decode(data, err)) }
		forbidden := errors.New("the local apiserver forbids to read it")
		return p.of.watch(ctx, p.ref, changed, func() { changed(nil, forbidden) })
	})
	return g.Wait() //nolint:wrapcheck // that of ctx
}

func (p *policies) decode(data map[string][]byte, err error) (objects []directory.Object, faults []directory.Fault) {
	file := "configmap " + p.ref.String()
	if err != nil {
		return nil, []directory.Fault{{File: file, Message: err.Error()}}
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		found, wrong := directory.Decode(file+" "+key, data[key])
		if faults = append(faults, wrong...); len(faults) == 0 { // an Allow may be unread, see Gates.Add
			objects = append(objects, found...)
		}
	}
	return objects, faults
}

// take compiles what was read for the writer, which waits for namespaces' labels if it selects by these.
func (p *policies) take(ctx context.Context, g *errgroup.Group, objects []directory.Object, faults []directory.Fault) {
	if len(objects)+len(faults) == 0 { // as if it were gone
		faults = []directory.Fault{{File: "policy", Message: "it has no document: to end it, write routes: []"}}
	}
	if len(faults) == 0 || !p.valid && len(objects) > 0 {
		now, wrong := p.options.compile(objects, p.namespaces, p.last.rules)
		if faults = append(faults, wrong...); len(faults) == 0 || !p.valid {
			p.last, p.valid = now, len(faults) == 0
			if now.rules != nil {
				now.rules.Map = p.ref
			}
		}
	}
	if len(faults) > 0 && !p.valid { // one line has both
		parts := "nothing is in force"
		if p.last.rules != nil || len(p.last.of) > 0 {
			parts = "in force are its valid parts, up to a faulty Allow"
		}
		faults[0].Message += "; no valid policy since the start: " + parts
	}
	switch selects, known := p.last.labels != nil, p.namespaces; {
	case selects && p.unfollow == nil:
		within, end := context.WithCancel(ctx)
		p.unfollow = end
		g.Go(func() error { p.follow(within, known); return ctx.Err() })
	case !selects && p.unfollow != nil: // who selects next waits for the labels of then
		p.unfollow()
		p.unfollow, p.namespaces = nil, new(policy.Namespaces)
	}
	p.of.changes.record(nil, func(b *batch) { b.policy, b.policyFaults = p.last, faults })
}

// follow keeps the namespaces' labels until ctx ends.
func (p *policies) follow(ctx context.Context, known *policy.Namespaces) {
	cluster := p.of.sources.cluster
	listed := func(forbidden bool) {
		known.Forbidden.Store(forbidden)
		known.Listed.Store(true)
		p.of.changes.record(nil, func(*batch) {}) // a policy waits for it, or a problem is gone
	}
	set := func(name types.NamespacedName, o runtime.Object) {
		if n, ok := o.(*corev1.Namespace); ok {
			known.Set(name.Name, n.Labels)
		} else {
			known.Keep(func(other string) bool { return other != name.Name })
		}
	}
	replace := func(all map[types.NamespacedName]runtime.Object) {
		known.Keep(func(name string) bool { return all[types.NamespacedName{Name: name}] != nil })
		for name, o := range all {
			set(name, o)
		}
		listed(false)
	}
	(&lister{
		example: &corev1.Namespace{}, from: everything(cluster.api.CoreV1().RESTClient(), "namespaces"),
		of: cluster, set: set, replace: replace, denied: func() { listed(true) },
	}).reflect(ctx)
}
