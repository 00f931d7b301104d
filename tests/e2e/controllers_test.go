//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// testControllers checks the work of a kube-controller-manager that is a client of the server under
// test. It needs all of discovery, watches of every resource, tokens, and deletions on both sides.
func testControllers(t *testing.T, w *world) {
	t.Run("a namespace gets its ServiceAccount and CA bundle", func(t *testing.T) {
		ns, kc := w.namespace(t), w.admin(t)
		kc.Soon(t, "it has the ServiceAccount", "get", "-n", ns, "serviceaccount/default")
		kc.Soon(t, "it has the CA bundle", "get", "-n", ns, "configmap/kube-root-ca.crt")
	})
	t.Run("a namespace is deleted with all in it", func(t *testing.T) {
		ns, kc := w.namespace(t), w.admin(t)
		for _, k := range kinds() {
			must.Get(w.dynamic.Resource(k.gvr).Namespace(ns).Create(t.Context(), k.object("inside", "x"), metav1.CreateOptions{}))(t)
		}
		kc.Run(t, "delete", "namespace", ns, "--timeout=90s") // returns when the namespace is gone
		for _, k := range kinds() {
			list := must.Get(w.dynamic.Resource(k.gvr).Namespace(ns).List(t.Context(), metav1.ListOptions{}))(t)
			if len(list.Items) > 0 {
				t.Errorf("%d %s outlived their namespace", len(list.Items), k.name)
			}
		}
	})
	local, remote := kinds()[0], kinds()[1]
	for _, c := range []struct {
		owner, owned kind
		policy       metav1.DeletionPropagation
	}{
		{local, remote, metav1.DeletePropagationForeground}, {remote, remote, metav1.DeletePropagationBackground}, {remote, local, metav1.DeletePropagationOrphan},
	} {
		t.Run(fmt.Sprintf("%s of %s %s", c.owned.name, c.owner.name, c.policy), func(t *testing.T) {
			t.Parallel()
			collect(t, w, c.owner, c.owned, c.policy)
		})
	}
}

// collect deletes an owner and checks what happens to the object that it owns.
func collect(t *testing.T, w *world, owner, owned kind, policy metav1.DeletionPropagation) {
	ns := w.namespace(t)
	owners, owneds := w.dynamic.Resource(owner.gvr).Namespace(ns), w.dynamic.Resource(owned.gvr).Namespace(ns)
	parent := must.Get(owners.Create(t.Context(), owner.object("parent", "x"), metav1.CreateOptions{}))(t)
	child := owned.object("child", "x")
	child.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: parent.GetAPIVersion(), Kind: parent.GetKind(), Name: "parent", UID: parent.GetUID(), BlockOwnerDeletion: new(true),
	}})
	must.Get(owneds.Create(t.Context(), child, metav1.CreateOptions{}))(t)
	// The collector must know the child before its owner is deleted: else it deletes an orphan, too
	// (kinds are watched separately). It collects what has no owner, after what was made before.
	witness := owned.object("witness", "x")
	witness.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: parent.GetAPIVersion(), Kind: parent.GetKind(), Name: "nobody", UID: "none"}})
	must.Get(owneds.Create(t.Context(), witness, metav1.CreateOptions{}))(t)
	gone := func(from dynamic.ResourceInterface, name string) {
		suite.Eventually(t, time.Minute, name+" is gone", func() (bool, string) {
			_, err := from.Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
	}
	gone(owneds, "witness") // then the collector knows the child
	must.Do(t, owners.Delete(t.Context(), "parent", metav1.DeleteOptions{PropagationPolicy: &policy}))
	gone(owners, "parent")
	if policy != metav1.DeletePropagationOrphan {
		gone(owneds, "child")
		return
	}
	suite.Eventually(t, time.Minute, "the child has no owner", func() (bool, string) {
		left, err := owneds.Get(t.Context(), "child", metav1.GetOptions{})
		return err == nil && len(left.GetOwnerReferences()) == 0, fmt.Sprint(left, err)
	})
}

const knots = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: knots.rigging.example.org
spec:
  group: rigging.example.org
  scope: Namespaced
  names: {plural: knots, singular: knot, kind: Knot, shortNames: [kn]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              turns: {type: integer, description: How often the line goes round.}
`

const bowline = `{"apiVersion":"rigging.example.org/v1","kind":"Knot","metadata":{"name":"bowline"},"spec":{"turns":1}}`

// testCustomResources defines a resource and uses it immediately, as Helm charts with CRDs do.
func testCustomResources(t *testing.T, w *world) {
	ns, kc := w.namespace(t), w.admin(t)
	kc.Cache = t.TempDir()
	kc.Feed(t, knots, "apply", "-f", "-")
	kc.Run(t, "wait", "--for=condition=Established", "--timeout=60s", "crd/knots.rigging.example.org")
	// Discovery is read from kube-apiserver some ten milliseconds after a change, and every 2 s. On
	// busy cores kube-apiserver itself lists a resource a while after it is Established.
	suite.Eventually(t, 10*time.Second, "it can be created", func() (bool, string) {
		a := kc.Try(t, bowline, "create", "-n", ns, "-f", "-")
		return a.Code == 0, a.Errs
	})
	kc.Run(t, "get", "kn", "bowline", "-n", ns)
	listed := func(want string) func() (bool, string) {
		return func() (bool, string) {
			kc.Cache = t.TempDir()
			out := kc.Run(t, "api-resources", "--api-group=rigging.example.org", "-o", "name")
			return out == want, out
		}
	}
	suite.Eventually(t, time.Minute, "it is listed", listed("knots.rigging.example.org\n"))
	suite.Eventually(t, time.Minute, "it is explained", func() (bool, string) { // its OpenAPI is published in the background
		a := kc.Try(t, "", "explain", "knot.spec.turns")
		return strings.Contains(a.Out, "How often the line goes round."), a.Out + a.Errs
	})
	kc.Run(t, "delete", "crd", "knots.rigging.example.org", "--timeout=60s")
	suite.Eventually(t, time.Minute, "it is no longer listed", listed(""))
}
