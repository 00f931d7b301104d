package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/directory/manifest"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

type set struct {
	in       registry.Input
	maps     map[types.NamespacedName]*corev1.ConfigMap
	policies []directory.Object
	at       map[string]string // :: object → "file:line"
}

// files checks manifests without a cluster, and the policy with them. A faulty one is not used with a cluster either.
func (l *linter) files(paths []string) {
	options := l.TableOptions()
	if l.kubeconfig == "" && !slices.ContainsFunc(paths, func(path string) bool { return !isFolder(path) }) {
		options.Directory, options.AllowURLs, options.Reach.AllowLoopback = true, true, true // as registry.New does
	}
	decoder := manifest.NewDecoder()
	decoder.Namespace = l.namespace
	s := &set{
		in: registry.Input{
			APIServices: make(map[string]*apiregistrationv1.APIService), Options: &options,
			Services: make(map[types.NamespacedName]*corev1.Service),
			Slices:   make(map[types.NamespacedName][]*discoveryv1.EndpointSlice), Complete: true, Now: time.Now(),
		},
		maps: make(map[types.NamespacedName]*corev1.ConfigMap), at: make(map[string]string),
	}
	_, inMap := cli.PolicyMap(l.Policy)
	if l.Policy != "" && !inMap {
		paths = append(paths, l.Policy)
	}
	found := len(l.Findings)
	for _, path := range paths {
		for _, file := range l.expand(path) {
			l.read(decoder, s, file)
		}
	}
	faults, unknown := s.in.SetPolicy(s.policies)
	if l.faults(faults, "correct the policy"); len(l.Findings) > found && !inMap {
		l.Policy = ""
	}
	for _, f := range unknown {
		if l.kubeconfig == "" && !l.current {
			l.Warn(place(f), "correct the name, or give lint the APIService, too", "%s", f.Message)
		}
	}
	t := registry.Build(s.in, nil)
	l.lockout(t.Rules())
	for _, e := range t.Servers() {
		at := s.at["APIService "+e.Name]
		if e.Rule != nil {
			at = e.Rule.Where
		}
		l.entry(e, at+": ", s)
	}
}

// lockout reports a rule that stops even system:masters, if no rule before it lets anybody pass.
func (l *linter) lockout(rules *policy.Gates) {
	if rules == nil {
		return
	}
	root := &user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
	q := &policy.Request{Verb: "update", Resource: "configmaps", Namespace: "kube-system", IsResource: true, User: root}
	stops, _ := rules.Find(q)
	at := slices.Index(rules.All(), stops)
	allows := func(g *policy.Gate) bool { return g.Action == policy.Allow && !g.DryRun }
	if at < 0 || slices.ContainsFunc(rules.All()[:at+1], allows) {
		return
	}
	l.Warn(stops.Where, "put one with action Allow before it, for break-glass (docs/rules.md)",
		"rule %s (%s) can stop everybody, system:masters too", stops.Name, stops.Action)
}

func (l *linter) faults(all []directory.Fault, do string) {
	for _, f := range all {
		l.Error(place(f), do, "%s", f.Message)
	}
}

func place(f directory.Fault) string { return fmt.Sprintf("%s:%d", f.File, max(f.Line, 1)) }

func (l *linter) expand(path string) []string {
	if path == "-" || !isFolder(path) {
		return []string{path}
	}
	files, faults := directory.Files(path)
	for _, f := range faults {
		l.Error(f.File, "make it readable", "%s", f.Message)
	}
	if len(faults)+len(files) == 0 {
		l.Warn(path, "name the directory that holds the manifests", "there is no .yaml, .yml or .json file in it")
	}
	return files
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func (l *linter) read(decoder *manifest.Decoder, s *set, file string) {
	read := func() ([]byte, error) { return directory.Read(file) }
	if file == "-" {
		read = func() ([]byte, error) { return manifest.Read(l.stdin) }
	}
	data, err := read()
	if err != nil {
		l.Error(file, "make it readable", "%v", err)
		return
	}
	objects, faults := decoder.DecodeGood(file, data)
	for _, f := range faults {
		if f.Foreign != "" {
			l.foreign[f.Foreign]++
		} else if s.in.Options.Directory || !strings.Contains(f.Message, "aggregationRule: Forbidden") { // by dir:
			l.faults([]directory.Fault{f}, "correct the manifest")
		}
	}
	for _, o := range objects {
		at := fmt.Sprintf("%s:%d", file, o.Line)
		if first, twice := s.at[o.Name()]; twice {
			l.Error(at, "keep one of them", "%s is already at %s", o.Name(), first)
			continue
		}
		s.at[o.Name()] = at
		s.add(o)
	}
}

func (s *set) add(o directory.Object) {
	switch v := o.Value.(type) {
	case *apiregistrationv1.APIService:
		s.in.APIServices[v.Name] = v
	case *corev1.Service:
		s.in.Services[types.NamespacedName{Namespace: v.Namespace, Name: v.Name}] = v
	case *discoveryv1.EndpointSlice:
		name := types.NamespacedName{Namespace: v.Namespace, Name: v.Labels[discoveryv1.LabelServiceName]}
		s.in.Slices[name] = append(s.in.Slices[name], v)
	case *corev1.ConfigMap:
		s.maps[types.NamespacedName{Namespace: v.Namespace, Name: v.Name}] = v
	case *policy.Policy:
		s.policies = append(s.policies, o)
	}
}

func (l *linter) entry(e *registry.Entry, at string, s *set) {
	l.problems(e, at)
	if e.Local() {
		return
	}
	object, b := at+"APIService "+e.Name, e.Backend
	l.claims[object] = e
	service := types.NamespacedName{Namespace: b.Namespace, Name: b.Service}
	if s.in.Services[service] != nil && e.Verdict.Reason == registry.ReasonServicePortError {
		l.Error(object, advice.Of(e, e.Verdict.Message), "%s", e.Verdict.Message)
	}
	bundle, ok := l.bundleOf(object, b, func(namespace, name string) (*corev1.ConfigMap, error) {
		return s.maps[types.NamespacedName{Namespace: namespace, Name: name}], nil // nil: only a live check can tell
	})
	if ok {
		l.CheckBackend(object, b, bundle, nil)
	}
}

func (l *linter) bundleOf(object string, b *registry.Backend,
	get func(namespace, name string) (*corev1.ConfigMap, error)) ([]byte, bool) {
	if b.CAFrom == "" {
		return []byte(b.CABundle), true
	}
	ref, key := b.Reference()
	if ref.Namespace == "" {
		return nil, false // a ClusterTrustBundle: serve's verdict says what is wrong with it
	}
	cm, err := get(ref.Namespace, ref.Name)
	if err != nil {
		l.Error(object, "make that ConfigMap, let Fairlead read it (ClusterRole system:fairlead-ca-from), "+
			"or correct the annotation fairlead.dev/ca-from", "reading its bundle: %v", err)
	}
	if err != nil || cm == nil {
		return nil, false
	}
	data := cmp.Or(cm.Data[key], string(cm.BinaryData[key]))
	if data == "" {
		l.Error(object, "put the bundle there, or correct the annotation fairlead.dev/ca-from",
			"ConfigMap %s/%s, which should contain its bundle, has no key %q", cm.Namespace, cm.Name, key)
	}
	return []byte(data), data != ""
}

func (l *linter) problems(e *registry.Entry, at string) {
	for _, p := range e.Problems {
		if strings.HasPrefix(p, "caBundle: ") {
			continue // CheckBackend says more about it
		}
		do, severity := cmp.Or(advice.For(p), "correct the APIService"), certs.SeverityError
		if strings.HasPrefix(p, "endpoint refused: ") {
			if do, severity = sameFlags, l.severity(e); at != "" { // lint may not know serve's flags for a file
				severity = certs.SeverityWarning
			}
		}
		l.Add(severity, at+"APIService "+e.Name, do, "%s", p)
	}
}

// doubled reports group-versions that files and cluster send to different backends, but no newer manifests of the same.
func (l *linter) doubled(entries []*registry.Entry) {
	const do = "remove one of them, unless this is intended: with --registry=dir:PATH,kubernetes the file's is used"
	for _, at := range slices.Sorted(maps.Keys(l.claims)) {
		e := l.claims[at]
		i := slices.IndexFunc(entries, func(theirs *registry.Entry) bool { return theirs.Name == e.Name })
		switch {
		case i < 0:
		case entries[i].Local():
			l.Warn(at, do, "the local apiserver itself serves it, and %s claims it", e.Backend)
		case !entries[i].Backend.SameService(e.Backend):
			l.Warn(at, do, "the cluster has %s serve it, and %s claims it", entries[i].Backend, e.Backend)
		}
	}
}
