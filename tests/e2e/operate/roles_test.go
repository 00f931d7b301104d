//go:build e2e

package operate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

const own = "system:serviceaccount:kube-system:fairlead"

const lendable = "/system:fairlead-namespaces" // a role that the tests bind themselves

// components bring roles beside the base's.
func components() []string {
	return []string{"entrypoint", "critical-apiservices", "write-status", "events", "policy"}
}

// testRoles lets a Fairlead with the shipped account do everything that the shipped roles are for.
// kube-apiserver's audit log has what it asked: nothing was refused, and each rule was needed.
func testRoles(t *testing.T, w *world) {
	w.apply(t, w.compose(t, shape{overlay: "control-plane", components: components()}))
	guarded := w.serve(t, "guarded", nil)
	w.apply(t, reader+definition("gadgets", "guarded"))
	t.Run("everything", func(t *testing.T) { testComponents(t, w, guarded) })
	t.Run("callers", func(t *testing.T) { testCallers(t, w) })
	t.Run("bundles", func(t *testing.T) { testBundleRole(t, w) })
	rules := shippedRoles(t, w)
	all := w.asked(t)
	for i := range all {
		r := &all[i]
		if r.ResponseStatus.Code == 403 && r.ObjectRef.Namespace != "lent" { // testBundleRole lends a namespace late
			t.Errorf("refused: %s %+v", r.Verb, r.ObjectRef)
		}
		rules = slices.DeleteFunc(rules, func(rule shippedRule) bool { return rule.allows(r) })
	}
	for _, r := range rules {
		t.Errorf("nothing needs to %v in %q", r.PolicyRule, r.namespace)
	}
}

// shippedRule is a rule of a shipped role that is bound to Fairlead's ServiceAccount.
type shippedRule struct {
	rbacv1.PolicyRule

	namespace string // empty for the whole cluster
}

// shippedRoles reads the rules from the manifests, so that a new rule is tested.
func shippedRoles(t *testing.T, w *world) (all []shippedRule) {
	t.Helper()
	roles := map[string][]rbacv1.PolicyRule{} // :: namespace and name
	var bound []string
	list := objects(t, w.compose(t, shape{overlay: "control-plane", components: components()}))
	for _, kind := range []string{"Role", "RoleBinding"} { // after Cluster or nothing; roles before their bindings
		for _, o := range list {
			if strings.TrimPrefix(o.GetKind(), "Cluster") != kind {
				continue
			}
			var it struct {
				Rules    []rbacv1.PolicyRule
				RoleRef  rbacv1.RoleRef
				Subjects []rbacv1.Subject
			}
			must.Do(t, yaml.Unmarshal(must.Get(yaml.Marshal(o.Object))(t), &it))
			name := o.GetNamespace() + "/" + cmp.Or(it.RoleRef.Name, o.GetName())
			if kind == "Role" {
				roles[name] = it.Rules
			} else if s := it.Subjects[0]; s.Kind == "ServiceAccount" && s.Name == "fairlead" {
				bound = append(bound, name)
				for _, rule := range roles[name] {
					all = append(all, shippedRule{rule, o.GetNamespace()})
				}
			}
		}
	}
	for _, rule := range roles[lendable] {
		all = append(all, shippedRule{rule, ""})
	}
	tested := append(bound, lendable, "/system:fairlead-ca-from", "/system:fairlead-metrics", "/system:fairlead-tap", "/system:fairlead-viewer")
	for name := range roles {
		check.Same(t, true, slices.Contains(tested, name), "role %s is shipped and not tested", name)
	}
	must.Be(t, len(all) >= 16, "%d rules were found, want at least 16", len(all))
	return all
}

func (r shippedRule) allows(q *auditv1.Event) bool {
	o := q.ObjectRef
	resource := strings.TrimSuffix(o.Resource+"/"+o.Subresource, "/")
	return slices.Contains(r.Verbs, q.Verb) && slices.Contains(r.APIGroups, o.APIGroup) && slices.Contains(r.Resources, resource) &&
		(r.namespace == "" || r.namespace == o.Namespace) && (len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, o.Name))
}

// asked returns the requests that Fairlead's account has made.
func (w *world) asked(t *testing.T) []auditv1.Event {
	t.Helper()
	return slices.DeleteFunc(must.Get(w.Audited())(t), func(e auditv1.Event) bool { return e.User.Username != own })
}

// testComponents runs a Fairlead that publishes itself, writes statuses and emits Events, until it exits.
// Its conditions are applied by the server, beside those of kube-apiserver's controllers.
func testComponents(t *testing.T, w *world, guarded *extension.Server) {
	w.alone.Lock() // one at a time publishes, writes statuses and emits Events here
	defer w.alone.Unlock()
	w.clear(t)
	w.apply(t, stale+fmt.Sprintf(lost, "parts"))
	w.apply(t, ruled)
	w.ask(t, "create clusterrolebinding operate-namespaces --clusterrole="+strings.TrimPrefix(lendable, "/")+" --serviceaccount=kube-system:fairlead")
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: "parts", Args: []string{
		"--kubeconfig=" + w.account(t), "--publish-kubernetes-endpoints", "--advertise-address=192.0.2.1", "--write-status", "--emit-events", "--critical-apiservices=v1.parts.example.com",
		"--policy=configmap:kube-system/fairlead-policy",
	}}))(t)
	w.publishes(t, "192.0.2.1")
	step := func(what string, done func() bool) {
		suite.Eventually(t, 30*time.Second, what, func() (bool, string) { return done(), read(t, front.Part.LogFile()) })
	}
	step("renewed", func() bool {
		_, scrape := w.get(t, front.Admin, "/metrics", "")
		return regexp.MustCompile(`(?m)^fairlead_entrypoint_rounds_total\{result="passed"\} ([3-9]|\d\d)`).MatchString(scrape)
	})
	written := func(name, want string) {
		suite.Eventually(t, 30*time.Second, "the condition of "+name+" is "+want, func() (bool, string) {
			got := w.ask(t, "get apiservice v1."+name+".example.com --show-managed-fields -o jsonpath="+conditions)
			return strings.HasPrefix(got, want+"/Apply/status/") && !strings.HasSuffix(got, "/"), got
		})
	}
	written("parts", "False")
	written("guarded", "True")
	must.Do(t, guarded.Set(extension.Fault{Kind: extension.Dead}))
	written("guarded", "False")
	must.Do(t, guarded.Set())
	written("guarded", "True")
	step("leading", func() bool { return strings.Contains(read(t, front.Part.LogFile()), "reporting verdicts as events") })
	w.apply(t, fmt.Sprintf(lost, "parts-late")) // an earlier leader may have reported the first one
	step("events", func() bool {
		return w.ask(t, "get events -n default -o name --field-selector involvedObject.kind=APIService,involvedObject.name=v1.parts-late.example.com") != ""
	})
	step("a refusal", func() bool {
		code, _ := w.get(t, front.Endpoint, "/operate-refused", "")
		return code == 403 && w.ask(t, "get events -n kube-system -o name --field-selector reason=RuleRefuses") != ""
	})
	written("parts-late", "False")
	w.ask(t, `patch apiservice v1.parts-late.example.com --type=merge -p {"spec":{"service":null}}`) // it becomes Local
	written("parts-late", "")
	_, scrape := w.get(t, front.Admin, "/metrics", "")
	check.Has(t, scrape, `fairlead_status_write_total{result="failed"} 0`)
	must.Do(t, front.Part.Stop(time.Minute))
	w.publishes(t, "")
	check.Same(t, "", w.ask(t, "get leases -n kube-system -o name -l fairlead.dev/entrypoint"), "the Leases that it left")
}

// testCallers compares accounts with a shipped role that is not bound by default, and without.
func testCallers(t *testing.T, w *world) {
	may, stranger := w.bound(t, "widgets"), suite.Token(t, w.core, "operate", "stranger")
	viewer, tapper, scraper := w.bound(t, "system:fairlead-viewer"), w.bound(t, "system:fairlead-tap"), suite.Token(t, w.core, "operate", "fairlead-metrics")
	const status, tap, widgets = "/fairlead/status", "/fairlead/tap?path=/version&seconds=1", "/apis/guarded.example.com/v1/namespaces/default/widgets"
	for path, token := range map[string]string{
		widgets: may, tap: tapper, "/fairlead/busiest?by=user": tapper, "/fairlead/busiest/": tapper, "/fairlead": viewer, "/fairlead/": viewer, status: viewer, "/fairlead/explain?path=/api/v1/pods": viewer,
		"/fairlead/apiservice/v9.batch": viewer, "/fairlead/style.css": viewer,
	} {
		w.serves(t, 30*time.Second, w.front.Endpoint, path, token)
		w.wants(t, 403, w.front.Endpoint, path, stranger)
	}
	w.wants(t, 403, w.front.Endpoint, "/api/v1/namespaces", stranger)
	w.wants(t, 403, w.front.Endpoint, status, tapper)
	w.wants(t, 403, w.front.Endpoint, tap, viewer)
	w.serves(t, 15*time.Second, w.front.Admin, "/metrics", scraper)
	w.wants(t, 403, w.front.Admin, "/status", scraper)
	w.wants(t, 403, w.front.Admin, "/metrics", may)
	suite.Eventually(t, 10*time.Second, "seen to hide a definition", func() (bool, string) {
		_, body := w.get(t, w.front.Endpoint, status, viewer)
		return strings.Contains(body, "CustomResourceDefinition gadgets.guarded.example.com"), body
	})
}

// testBundleRole takes a bundle from a ConfigMap, once its namespace grants that.
func testBundleRole(t *testing.T, w *world) {
	const path = "/apis/lent.example.com/v1"
	s := extension.Start(t, extension.Config{GroupVersions: []string{"lent.example.com/v1"}, Names: []string{"lent.lent.svc"}, CA: w.ca})
	w.ask(t, "create namespace lent")
	w.ask(t, "create rolebinding needs-ca-from -n lent --clusterrole=system:fairlead-ca-from --serviceaccount=kube-system:needs") // testNeeds' Fairlead
	w.ask(t, "create configmap bundle -n lent --from-file=ca.crt="+w.caFile)
	w.apply(t, fmt.Sprintf(lent, s.Port()))
	suite.Eventually(t, 30*time.Second, "refused", func() (bool, string) {
		refused := slices.ContainsFunc(w.asked(t), func(r auditv1.Event) bool { return r.ResponseStatus.Code == 403 && r.ObjectRef.Namespace == "lent" })
		return refused, "nobody asked for the bundle"
	})
	w.wants(t, 503, w.front.Endpoint, path, "") // without its bundle
	w.ask(t, "create rolebinding fairlead-ca-from -n lent --clusterrole=system:fairlead-ca-from --serviceaccount=kube-system:fairlead")
	w.serves(t, time.Minute, w.front.Endpoint, path, "")
}

// conditions are Fairlead's own, how and where it has been written, and that of kube-apiserver's controllers.
const conditions = `{.status.conditions[?(@.type=="fairlead.dev/Available")].status}/` +
	`{.metadata.managedFields[?(@.manager=="fairlead")].operation}/{.metadata.managedFields[?(@.manager=="fairlead")].subresource}/` +
	`{.status.conditions[?(@.type=="Available")].status}`

// clear removes what earlier Fairleads have left, so that a Fairlead publishes, writes and emits anew.
func (w *world) clear(t *testing.T) {
	t.Helper()
	w.ask(t, "delete -n default --ignore-not-found endpointslices/kubernetes endpointslices/kubernetes-1 endpoints/kubernetes")
	w.ask(t, "delete -n kube-system --ignore-not-found leases/fairlead-status leases/fairlead-events")
	w.ask(t, "delete -n kube-system leases -l fairlead.dev/entrypoint")
}

// publishes waits until the EndpointSlices and the Endpoints of default/kubernetes have the same address, or none.
func (w *world) publishes(t *testing.T, address string) {
	t.Helper()
	suite.Eventually(t, 30*time.Second, "published", func() (bool, string) {
		inSlices := w.ask(t, "get endpointslices -n default -l kubernetes.io/service-name=kubernetes -o jsonpath={.items[*].endpoints[*].addresses[*]}")
		inEndpoints := w.ask(t, "get endpoints -n default --ignore-not-found kubernetes -o jsonpath={.metadata.name}={.subsets[*].addresses[*].ip}")
		return inSlices == address && inEndpoints == "kubernetes="+address, inSlices + " and " + inEndpoints
	})
}

// bound makes an account with a ClusterRole and no other, and returns its token.
func (w *world) bound(t *testing.T, role string) string {
	t.Helper()
	name := strings.TrimPrefix(role, "system:")
	w.ask(t, "create serviceaccount -n operate "+name)
	w.ask(t, "create clusterrolebinding operate-"+name+" --clusterrole="+role+" --serviceaccount=operate:"+name)
	return suite.Token(t, w.core, "operate", name)
}

// reader is a ClusterRole that may list widgets, and a stranger without rights.
const reader = `
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: stranger}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: widgets}, rules: [{apiGroups: [guarded.example.com], resources: [widgets], verbs: [list]}]}
---
`

// stale is an EndpointSlice that an earlier Fairlead has left.
const stale = `
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, endpoints: [{addresses: [192.0.2.99]}], ports: [{name: https, port: 1}],
 metadata: {name: kubernetes-1, namespace: default, labels: {kubernetes.io/service-name: kubernetes, endpointslice.kubernetes.io/managed-by: fairlead.dev}}}
---
`

const lost = `
{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.%[1]s.example.com},
 spec: {group: %[1]s.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 1, service: {namespace: nowhere, name: nothing}}}
`

// ruled is a policy whose rule refuses, and whose route needs to know namespaces.
const ruled = `
{apiVersion: v1, kind: ConfigMap, metadata: {namespace: kube-system, name: fairlead-policy}, data: {policy.yaml: '
 {apiVersion: fairlead.dev/v1, kind: Policy, rules: [{name: refused, match: {nonResourceRules: [{verbs: [get], nonResourceURLs: [/operate-refused]}]}, action: Deny}],
  routes: [{apiService: v1.parts.example.com, backends: [{name: spare, service: {namespace: nowhere, name: spare}, when: {namespaceLabels: {matchLabels: {a: b}}}}]}]}'}}
`

const lent = `
{apiVersion: v1, kind: Service, metadata: {namespace: lent, name: lent}, spec: {type: ExternalName, externalName: localhost, ports: [{port: %[1]d}]}}
---
{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.lent.example.com, annotations: {fairlead.dev/ca-from: bundle/ca.crt}},
 spec: {group: lent.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 1, service: {namespace: lent, name: lent, port: %[1]d}}}
`
