package rights

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// everything needs every right.
func everything() Features {
	f := Shipped()
	f.Impersonation, f.Status, f.Events, f.Entrypoint, f.Critical, f.Bundles = true, true, true, true, true, []string{"somewhere/"}
	f.Policy, f.NamespaceLabels, f.Servers = "kube-system/fairlead-policy", true, "lease"
	return f
}

// The list and the shipped roles of Fairlead's own account are equal, lines included.
func TestListIsWhatShips(t *testing.T) {
	var listed []string
	for _, r := range Needed(everything()) {
		listed = append(listed, fmt.Sprintf("%s %s %s", r.Manifest, r.Role, r))
	}
	shipped := shippedRights(t)
	slices.Sort(listed)
	slices.Sort(shipped)
	check.Same(t, shipped, listed, "shipped (-) and listed (+)")
	check.Same(t, true, len(listed) >= 40, "%d rights, want at least 40", len(listed))
}

// shippedRights reads the roles of all manifests.
func shippedRights(t *testing.T) (all []string) {
	t.Helper()
	must.Do(t, filepath.WalkDir("../../deploy", func(path string, e fs.DirEntry, err error) error {
		// The account of the component renew is another one; the roles of viewer.yaml are for
		// people. The chart has copies.
		if err != nil || filepath.Ext(path) != ".yaml" || strings.Contains(path, "/renew/") || strings.Contains(path, "/helm/") || filepath.Base(path) == "viewer.yaml" {
			return err
		}
		name, line, kind, in := strings.TrimPrefix(path, "../../"), 0, "", rbacv1.Role{}
		for text := range strings.Lines(string(must.Get(os.ReadFile(path))(t))) {
			line++
			var rule rbacv1.PolicyRule
			switch {
			case strings.HasPrefix(text, "kind: "):
				kind = strings.TrimSpace(strings.TrimPrefix(text, "kind: "))
			case strings.HasPrefix(text, "metadata: {"):
				in = rbacv1.Role{}
				must.Do(t, yaml.Unmarshal([]byte(text), &in))
				if kind != "RoleBinding" || in.Name != "fairlead-authentication-reader" {
					continue
				}
				for _, verb := range []string{"list", "watch"} { // what we use of Kubernetes' own Role
					all = append(all, fmt.Sprintf("%s:%d RoleBinding %s %s configmaps extension-apiserver-authentication in namespace kube-system", name, line, in.Name, verb))
				}
			case strings.HasSuffix(kind, "Role") && strings.Contains(text, "verbs: ["):
				must.Do(t, yaml.UnmarshalStrict([]byte(strings.TrimPrefix(text, "  - ")), &rule))
				if in.Name == "system:fairlead-ca-from" {
					in.Namespace = "somewhere" // where it is bound
				}
				for _, r := range spread(rule) {
					r.Namespace = in.Namespace
					all = append(all, fmt.Sprintf("%s:%d %s %s %s", name, line, kind, in.Name, r))
				}
			}
		}
		return nil
	}))
	return all
}

func spread(p rbacv1.PolicyRule) (all []Right) {
	for _, group := range p.APIGroups {
		for _, resource := range p.Resources {
			for _, name := range append(p.ResourceNames, "")[:max(1, len(p.ResourceNames))] {
				for _, verb := range p.Verbs {
					all = append(all, Right{Verb: verb, Group: group, Resource: resource, Name: name})
				}
			}
		}
	}
	return all
}

// A feature that is off needs nothing.
func TestNeeded(t *testing.T) {
	const configMap = " configmaps extension-apiserver-authentication in namespace kube-system"
	always := []string{"create tokenreviews.authentication.k8s.io", "list" + configMap, "watch" + configMap}
	for _, tt := range []struct {
		name string
		f    Features
		want []string
	}{
		{"no more", Features{}, nil},
		{"leases", Features{Servers: "lease"}, []string{"list leases.coordination.k8s.io in namespace kube-system"}},
		{"endpointslices", Features{Servers: "endpointslice"}, []string{"list endpointslices.discovery.k8s.io", "watch endpointslices.discovery.k8s.io"}},
		{"bundles", Features{Bundles: []string{"a/x", "b/y"}}, []string{
			"list configmaps x in namespace a", "watch configmaps x in namespace a", "list configmaps y in namespace b", "watch configmaps y in namespace b",
		}},
		{"a trust bundle", Features{Bundles: []string{"/example.com:signer:x"}}, []string{
			"list clustertrustbundles.certificates.k8s.io example.com:signer:x", "watch clustertrustbundles.certificates.k8s.io example.com:signer:x",
		}},
		{"a policy", Features{Policy: "a/x", NamespaceLabels: true}, []string{"list configmaps x in namespace a", "watch configmaps x in namespace a", "list namespaces", "watch namespaces"}},
		{"events beside the policy", Features{Events: true, Policy: "a/x"}, []string{
			"create events in namespace default", "patch events in namespace default",
			"get leases.coordination.k8s.io fairlead-events in namespace kube-system", "update leases.coordination.k8s.io fairlead-events in namespace kube-system",
			"create events in namespace a", "patch events in namespace a", "create leases.coordination.k8s.io in namespace kube-system",
			"list configmaps x in namespace a", "watch configmaps x in namespace a",
		}},
		{"requests", Features{Requests: true}, []string{"create subjectaccessreviews.authorization.k8s.io"}},
	} {
		var got []string
		seen := 0
		for _, r := range Needed(tt.f) {
			if got = append(got, r.String()); slices.Contains(always, r.String()) {
				got = got[:len(got)-1]
				seen++
			}
		}
		check.Same(t, len(always), seen, "%s: rights that are always needed", tt.name)
		check.Same(t, strings.Join(tt.want, "\n"), strings.Join(got, "\n"), "%s", tt.name)
	}
}

// The entrypoint lists the EndpointSlices of the Service kubernetes, also where the registry does not.
func TestEntrypointLists(t *testing.T) {
	for _, f := range []Features{{Entrypoint: true}, {Entrypoint: true, Services: true}} {
		lists := 0
		for _, r := range Needed(f) {
			if r.Verb == "list" && r.Resource == "endpointslices" {
				lists++
			}
		}
		check.Same(t, 1, lists, "rights to list EndpointSlices with %+v", f)
	}
}

func TestAttributes(t *testing.T) {
	want := &authorizationv1.ResourceAttributes{Verb: "patch", Group: "apiregistration.k8s.io", Version: "*", Resource: "apiservices", Subresource: "status"}
	for _, r := range Needed(Features{Status: true}) {
		if r.Verb == "patch" {
			check.Same(t, want, r.Attributes(), "attributes")
			return
		}
	}
	t.Error("no right to patch")
}
