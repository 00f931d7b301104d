//go:build e2e

package operate

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// configMapReader is a Role of Kubernetes, which is bound but not shipped.
const configMapReader = "extension-apiserver-authentication-reader"

// grant is a rule of the shipped roles that is bound to Fairlead's ServiceAccount.
type grant struct {
	role, namespace string // namespace is empty for the whole cluster
	rule            rbacv1.PolicyRule
	component       string // of deploy/components, by its role's name without system:. Empty means the base
}

func (g grant) resource() string {
	if g.role == configMapReader {
		return configMapReader
	}
	return strings.Join(g.rule.Resources, ",")
}

func (g grant) String() string {
	if g.namespace != "" {
		return strings.TrimSpace(strings.Join(g.rule.Verbs, "-") + " " + g.resource() + " in " + g.namespace)
	}
	return g.resource()
}

func without(all []grant, i int) []grant {
	return slices.Concat(all[:i], all[i+1:])
}

// shippedGrants reads the rules from the manifests, so that a new rule is tested, or fails because
// it has no case.
func shippedGrants(t *testing.T, w *world) []grant {
	t.Helper()
	ours := func(list []rbacv1.Subject) bool {
		return slices.ContainsFunc(list, func(s rbacv1.Subject) bool {
			return s.Kind == "ServiceAccount" && s.Namespace == "kube-system" && s.Name == "fairlead"
		})
	}
	base := w.kustomize(t, "base")
	var all []grant
	rules := map[string][]rbacv1.PolicyRule{} // :: kind, namespace and name of a role → its rules
	list := objects(t, w.compose(t, shape{overlay: "control-plane", components: []string{"entrypoint", "write-status", "events"}}))
	for _, o := range list {
		if o.GetKind() == "Role" || o.GetKind() == "ClusterRole" {
			var role rbacv1.ClusterRole // a Role has the same fields
			must.Do(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role))
			rules[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = role.Rules
		}
	}
	for _, o := range list {
		if o.GetKind() != "RoleBinding" && o.GetKind() != "ClusterRoleBinding" {
			continue
		}
		var binding rbacv1.ClusterRoleBinding
		must.Do(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &binding))
		if !ours(binding.Subjects) {
			continue
		}
		g := grant{role: binding.RoleRef.Name, namespace: o.GetNamespace()}
		if !strings.Contains(base, "name: "+g.role+"\n") {
			g.component = strings.TrimPrefix(g.role, "system:")
		}
		of := rules[binding.RoleRef.Kind+" "+map[string]string{"Role": o.GetNamespace()}[binding.RoleRef.Kind]+"/"+binding.RoleRef.Name]
		if g.role == configMapReader {
			of = []rbacv1.PolicyRule{{}}
		}
		if len(of) == 0 {
			t.Fatalf("%s %s is bound, but not shipped", binding.RoleRef.Kind, g.role)
		}
		for _, g.rule = range of {
			all = append(all, g)
		}
	}
	if len(all) < 17 {
		t.Fatalf("%d rules were found, want at least 17", len(all))
	}
	return all
}

// restricted starts a Fairlead with a new account that has these grants.
func (w *world) restricted(t *testing.T, name string, grants []grant, args ...string) (*cluster.Front, error) {
	t.Helper()
	w.apply(t, fmt.Sprintf("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: %s}}", name))
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "operate", Name: name}}
	for i, g := range grants {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i), Namespace: g.namespace}
		ref := rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: meta.Name}
		var err error
		switch {
		case g.role == configMapReader:
			ref.Name = configMapReader
		case g.namespace == "":
			ref.Kind = "ClusterRole"
			_, err = w.core.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{g.rule}}, metav1.CreateOptions{})
		default:
			_, err = w.core.RbacV1().Roles(g.namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{g.rule}}, metav1.CreateOptions{})
		}
		must.Do(t, err)
		if g.namespace == "" {
			_, err = w.core.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}, metav1.CreateOptions{})
		} else {
			_, err = w.core.RbacV1().RoleBindings(g.namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}, metav1.CreateOptions{})
		}
		must.Do(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second) // with all rights, it is ready within two seconds
	defer cancel()
	return w.StartFairlead(ctx, cluster.Fairlead{Path: w.fairlead, Name: name, Args: append([]string{"--kubeconfig=" + w.account(t, "operate", name)}, args...)})
}

// testComponents runs Fairlead with everything that deploy/components turn on, then with one rule
// less: the log must say what was forbidden.
func testComponents(t *testing.T, w *world, grants []grant) {
	w.alone.Lock() // one at a time publishes, writes statuses and emits Events here
	defer w.alone.Unlock()
	t.Run("everything works", func(t *testing.T) {
		if done, log := w.component(t, "parts", "", grants, ""); !done || strings.Contains(log, "forbidden") {
			t.Errorf("something was forbidden:\n%s", log)
		}
	})
	for i, missing := range grants {
		if missing.component == "" {
			continue
		}
		t.Run(missing.component+" without "+missing.String(), func(t *testing.T) {
			// Another component may grant the same.
			only := slices.DeleteFunc(without(grants, i), func(g grant) bool {
				return g.component != "" && g.component != missing.component
			})
			refused := `resource \"` + missing.rule.Resources[0] + `\"`
			if done, log := w.component(t, fmt.Sprintf("parts-%d", i), missing.component, only, refused); done {
				t.Errorf("everything works without the rule:\n%s", log)
			}
		})
	}
}

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

// component runs a Fairlead that publishes itself, writes statuses and emits Events, or does only
// what role is for, until it exits. It returns whether it did all that. Otherwise its log contains
// refused.
func (w *world) component(t *testing.T, name, role string, grants []grant, refused string) (done bool, log string) {
	t.Helper()
	w.clear(t)
	w.apply(t, stale+fmt.Sprintf(lost, name))
	does := func(component string) bool { return role == "" || role == component }
	publishes, writes, emits := does("fairlead-entrypoint"), does("fairlead-status"), does("fairlead-events")
	front, err := w.restricted(t, name, grants, fmt.Sprintf("--publish-kubernetes-endpoints=%t", publishes), "--advertise-address=192.0.2.1",
		fmt.Sprintf("--write-status=%t", writes), fmt.Sprintf("--emit-events=%t", emits))
	must.Do(t, err)
	done = true
	step := func(wanted bool, what string, ok func() bool) {
		if !wanted {
			return
		}
		met := false
		suite.Eventually(t, 30*time.Second, what, func() (bool, string) {
			log = w.logged(t, front)
			met = ok()
			return met || refused != "" && strings.Contains(log, refused), log
		})
		done = done && met
	}
	step(publishes, "published", func() bool { return w.published(t) == "192.0.2.1" })
	step(publishes, "renewed", func() bool { return w.scraped(t, front, "fairlead_entrypoint_rounds_total{result=\"passed\"}") >= 3 })
	step(writes, "written", func() bool {
		out := succeed(t, "", w.kubectl, "--kubeconfig", w.direct, "get", "apiservice", "v1."+name+".example.com", "-o", "jsonpath={.status.conditions[*].type}")
		return strings.Contains(out, "fairlead.dev/Available")
	})
	step(emits, "leading", func() bool { return strings.Contains(log, "reporting verdicts as events") })
	if emits && done {
		w.apply(t, fmt.Sprintf(lost, name+"-late")) // the previous leader may have reported the first one
	}
	step(emits && done, "events", func() bool { return w.events(t, "v1."+name+"-late.example.com") > 0 })
	must.Do(t, front.Part.Signal(syscall.SIGTERM))
	<-front.Part.Done()
	step(publishes, "withdrawn", func() bool { return w.published(t) == "" && !w.leased(t) })
	succeed(t, "", w.kubectl, "--kubeconfig", w.direct, "delete", "apiservice", "v1."+name+".example.com", "v1."+name+"-late.example.com", "--ignore-not-found")
	return done, log
}

// clear removes what earlier Fairleads have left, so that a Fairlead publishes, writes and emits
// anew.
func (w *world) clear(t *testing.T) {
	t.Helper()
	gone := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
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
	text := must.Get(os.ReadFile(f.Part.LogFile()))(t)
	return string(text)
}

func (w *world) events(t *testing.T, name string) int {
	t.Helper()
	list := must.Get(w.core.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=APIService,involvedObject.name=" + name}))(t)
	return len(list.Items)
}

// published returns the addresses in the EndpointSlices of default/kubernetes, if the Endpoints
// have the same.
func (w *world) published(t *testing.T) string {
	t.Helper()
	list := must.Get(w.core.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"}))(t)
	old, err := w.core.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "no Endpoints"
	}
	must.Do(t, err)
	var slicesSay, endpointsSay []string
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			slicesSay = append(slicesSay, e.Addresses...)
		}
	}
	for _, s := range old.Subsets {
		for _, a := range s.Addresses {
			endpointsSay = append(endpointsSay, a.IP)
		}
	}
	if !slices.Equal(slicesSay, endpointsSay) {
		return fmt.Sprint(slicesSay, " and ", endpointsSay)
	}
	return strings.Join(slicesSay, ",")
}

func (w *world) leased(t *testing.T) bool {
	t.Helper()
	list := must.Get(w.core.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "fairlead.dev/entrypoint"}))(t)
	return len(list.Items) > 0
}

// scraped returns the value of one of a Fairlead's series, read by a member of system:masters.
func (w *world) scraped(t *testing.T, f *cluster.Front, series string) float64 {
	t.Helper()
	return must.Get(ask.Metrics(t.Context(), suite.Client(t, f.Admin, w.Admin()), f.Admin.URL))(t)[series]
}
