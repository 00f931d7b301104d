//go:build e2e

package operate

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

const own = "system:serviceaccount:kube-system:fairlead"

// testRoles lets a Fairlead with the shipped account do everything that the shipped roles are for.
// kube-apiserver's audit log has what it asked: nothing was refused, and each rule was needed.
func testRoles(t *testing.T, w *world) {
	w.apply(t, w.compose(t, shape{overlay: "control-plane", components: []string{"entrypoint", "write-status", "events"}}))
	w.serve(t, "guarded", nil)
	w.apply(t, reader+definition("gadgets", "guarded"))
	t.Run("everything", func(t *testing.T) { testComponents(t, w) })
	t.Run("callers", func(t *testing.T) { testCallers(t, w) })
	t.Run("bundles", func(t *testing.T) { testBundleRole(t, w) })
	rules := shippedRoles(t, w)
	for _, r := range w.asked(t) {
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
	list := objects(t, w.compose(t, shape{overlay: "control-plane", components: []string{"entrypoint", "write-status", "events"}}))
	roles := map[string]rbacv1.ClusterRole{} // :: namespace and name → role; a Role has the same fields
	for _, o := range list {
		if strings.HasSuffix(o.GetKind(), "Role") {
			var role rbacv1.ClusterRole
			must.Do(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role))
			roles[o.GetNamespace()+"/"+o.GetName()] = role
		}
	}
	var bound []string
	for _, o := range list {
		if !strings.HasSuffix(o.GetKind(), "RoleBinding") {
			continue
		}
		var binding rbacv1.ClusterRoleBinding
		must.Do(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &binding))
		if s := binding.Subjects[0]; s.Kind != "ServiceAccount" || s.Name != "fairlead" {
			continue
		}
		name := o.GetNamespace() + "/" + binding.RoleRef.Name
		bound = append(bound, name)
		for _, rule := range roles[name].Rules {
			all = append(all, shippedRule{rule, o.GetNamespace()})
		}
	}
	tested := append(bound, "/system:fairlead-ca-from", "/system:fairlead-metrics", "/system:fairlead-tap", "/system:fairlead-viewer")
	for name := range roles {
		if !slices.Contains(tested, name) {
			t.Errorf("role %s is shipped and not tested", name)
		}
	}
	if len(all) < 16 {
		t.Fatalf("%d rules were found, want at least 16", len(all))
	}
	return all
}

// request is what the audit log says of a request.
type request struct {
	Verb           string
	User           struct{ Username string }
	ObjectRef      struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	ResponseStatus struct{ Code int }
}

func (r shippedRule) allows(q request) bool {
	o := q.ObjectRef
	resource := strings.TrimSuffix(o.Resource+"/"+o.Subresource, "/")
	return slices.Contains(r.Verbs, q.Verb) && slices.Contains(r.APIGroups, o.APIGroup) && slices.Contains(r.Resources, resource) &&
		(r.namespace == "" || r.namespace == o.Namespace) && (len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, o.Name))
}

// asked returns the requests that Fairlead's account has made.
func (w *world) asked(t *testing.T) (all []request) {
	t.Helper()
	log := must.Get(os.Open(filepath.Join(w.dir, "audit.jsonl")))(t)
	defer log.Close()
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err == nil && r.User.Username == own { // the last line may be incomplete
			all = append(all, r)
		}
	}
	return all
}

// testComponents runs a Fairlead that publishes itself, writes statuses and emits Events, until it
// exits.
func testComponents(t *testing.T, w *world) {
	w.alone.Lock() // one at a time publishes, writes statuses and emits Events here
	defer w.alone.Unlock()
	w.clear(t)
	w.apply(t, stale+fmt.Sprintf(lost, "parts"))
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: "parts", Args: []string{
		"--kubeconfig=" + w.account(t, "kube-system", "fairlead"), "--publish-kubernetes-endpoints", "--advertise-address=192.0.2.1", "--write-status", "--emit-events",
	}}))(t)
	w.publishes(t, "192.0.2.1")
	step := func(what string, done func() bool) {
		suite.Eventually(t, 30*time.Second, what, func() (bool, string) { return done(), w.logged(t, front) })
	}
	step("renewed", func() bool {
		_, scrape := w.get(t, front.Admin, "/metrics", "")
		return regexp.MustCompile(`(?m)^fairlead_entrypoint_rounds_total\{result="passed"\} ([3-9]|\d\d)`).MatchString(scrape)
	})
	step("written", func() bool {
		out := succeed(t, "", w.kubectl, "--kubeconfig", w.direct, "get", "apiservice", "v1.parts.example.com", "-o", "jsonpath={.status.conditions[*].type}")
		return strings.Contains(out, "fairlead.dev/Available")
	})
	step("leading", func() bool { return strings.Contains(w.logged(t, front), "reporting verdicts as events") })
	w.apply(t, fmt.Sprintf(lost, "parts-late")) // an earlier leader may have reported the first one
	step("events", func() bool {
		of := metav1.ListOptions{FieldSelector: "involvedObject.kind=APIService,involvedObject.name=v1.parts-late.example.com"}
		return len(must.Get(w.core.CoreV1().Events("default").List(t.Context(), of))(t).Items) > 0
	})
	must.Do(t, front.Part.Signal(syscall.SIGTERM))
	<-front.Part.Done()
	w.publishes(t, "")
	leases := must.Get(w.core.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "fairlead.dev/entrypoint"}))(t)
	if len(leases.Items) > 0 {
		t.Errorf("it left Leases: %v", leases.Items)
	}
}

// testCallers compares accounts with a shipped role that is not bound by default, and without.
func testCallers(t *testing.T, w *world) {
	may, stranger := w.bound(t, "widgets"), suite.Token(t, w.core, "operate", "stranger")
	viewer, tapper, scraper := w.bound(t, "system:fairlead-viewer"), w.bound(t, "system:fairlead-tap"), w.bound(t, "system:fairlead-metrics")
	const status, tap, widgets = "/fairlead/status", "/fairlead/tap?path=/version&seconds=1", "/apis/guarded.example.com/v1/namespaces/default/widgets"
	for path, token := range map[string]string{
		widgets: may, tap: tapper, "/fairlead": viewer, "/fairlead/": viewer, status: viewer, "/fairlead/explain?path=/api/v1/pods": viewer,
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
	const name, path = "lent", "/apis/lent.example.com/v1"
	s := extension.Start(t, extension.Config{GroupVersions: []string{name + ".example.com/v1"}, Names: []string{name + "." + name + ".svc"}, CA: w.ca})
	w.apply(t, fmt.Sprintf(lent, portOf(s), strings.ReplaceAll(string(w.ca.PEM()), "\n", "\\n")))
	suite.Eventually(t, 30*time.Second, "refused", func() (bool, string) {
		refused := slices.ContainsFunc(w.asked(t), func(r request) bool { return r.ResponseStatus.Code == 403 && r.ObjectRef.Namespace == name })
		return refused, "nobody asked for the bundle"
	})
	w.wants(t, 503, w.front.Endpoint, path, "") // without its bundle
	w.apply(t, lender)
	w.serves(t, time.Minute, w.front.Endpoint, path, "")
}

// clear removes what earlier Fairleads have left, so that a Fairlead publishes, writes and emits
// anew.
func (w *world) clear(t *testing.T) {
	t.Helper()
	gone := func(err error) {
		if !apierrors.IsNotFound(err) {
			must.Do(t, err)
		}
	}
	for _, slice := range []string{"kubernetes", "kubernetes-1"} {
		gone(w.core.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), slice, metav1.DeleteOptions{}))
	}
	gone(w.core.CoreV1().Endpoints("default").Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}))
	for _, lease := range []string{"fairlead-status", "fairlead-events"} {
		gone(w.core.CoordinationV1().Leases("kube-system").Delete(t.Context(), lease, metav1.DeleteOptions{}))
	}
	gone(w.core.CoordinationV1().Leases("kube-system").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "fairlead.dev/entrypoint"}))
}

func (w *world) logged(t *testing.T, f *cluster.Front) string {
	t.Helper()
	return string(must.Get(os.ReadFile(f.Part.LogFile()))(t))
}

// publishes waits until the EndpointSlices and the Endpoints of default/kubernetes have the same
// address, or none.
func (w *world) publishes(t *testing.T, address string) {
	t.Helper()
	suite.Eventually(t, 30*time.Second, "published", func() (bool, string) {
		list := must.Get(w.core.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"}))(t)
		old, err := w.core.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, "no Endpoints"
		}
		must.Do(t, err)
		var inSlices, inEndpoints string
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				inSlices += strings.Join(e.Addresses, " ")
			}
		}
		for _, s := range old.Subsets {
			for _, a := range s.Addresses {
				inEndpoints += a.IP
			}
		}
		return inSlices == address && inEndpoints == address, inSlices + " and " + inEndpoints
	})
}

// bound makes an account with a ClusterRole and no other, and returns its token.
func (w *world) bound(t *testing.T, role string) string {
	t.Helper()
	name := strings.TrimPrefix(role, "system:")
	w.apply(t, fmt.Sprintf(`
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: %[1]s}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operate-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[2]q}
subjects: [{kind: ServiceAccount, namespace: operate, name: %[1]s}]
`, name, role))
	return suite.Token(t, w.core, "operate", name)
}

// reader is a ClusterRole that may list widgets, and a stranger without rights.
const reader = `
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: stranger}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: widgets}
rules: [{apiGroups: [guarded.example.com], resources: [widgets], verbs: [list]}]
---
`

// stale is an EndpointSlice that an earlier Fairlead has left.
const stale = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes-1, namespace: default, labels: {kubernetes.io/service-name: kubernetes, endpointslice.kubernetes.io/managed-by: fairlead.dev}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.99]}]
ports: [{name: https, port: 1}]
---
`

const lost = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.%[1]s.example.com}
spec: {group: %[1]s.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 1, service: {namespace: nowhere, name: nothing}}
`

const lent = `
{apiVersion: v1, kind: Namespace, metadata: {name: lent}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: lent, name: lent}, spec: {type: ExternalName, externalName: localhost, ports: [{port: %[1]s}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {namespace: lent, name: bundle}, data: {ca.crt: "%[2]s"}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.lent.example.com, annotations: {fairlead.dev/ca-from: bundle/ca.crt}}
spec: {group: lent.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 1, service: {namespace: lent, name: lent, port: %[1]s}}
`

const lender = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: fairlead-ca-from, namespace: lent}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:fairlead-ca-from"}
subjects: [{kind: ServiceAccount, name: fairlead, namespace: kube-system}]
`
