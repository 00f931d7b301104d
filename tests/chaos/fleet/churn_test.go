//go:build e2e

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// churn makes namespaces with claims and custom resources, and deletes them and their definitions,
// until ctx ends. A client tries again.
func (w *world) churn(t *testing.T, ctx context.Context) {
	all := t.Context() // what was begun is deleted, too
	config := w.front.RESTConfig(w.Admin())
	core, objects := must.Get(kubernetes.NewForConfig(config))(t), must.Get(dynamic.NewForConfig(config))(t)
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("%s%d-%d", churned, time.Now().UnixMilli(), i)
		for _, do := range []func() error{
			func() error {
				_, err := core.CoreV1().Namespaces().Create(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				return err
			},
			func() error {
				_, err := core.ResourceV1().ResourceClaims(name).Create(all, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}}, metav1.CreateOptions{})
				return err
			},
			func() error {
				_, err := objects.Resource(definitions).Create(all, definition(name), metav1.CreateOptions{})
				return err
			},
			func() error { // it is 404 until it is established
				thing := &unstructured.Unstructured{Object: map[string]any{"apiVersion": definedGroup(name) + "/v1", "kind": "Thing", "metadata": map[string]any{"name": "one"}}}
				_, err := objects.Resource(schema.GroupVersionResource{Group: definedGroup(name), Version: "v1", Resource: "things"}).Namespace(name).Create(all, thing, metav1.CreateOptions{})
				return again(err)
			},
			func() error { return core.CoreV1().Namespaces().Delete(all, name, metav1.DeleteOptions{}) },
			func() error {
				return objects.Resource(definitions).Delete(all, "things."+definedGroup(name), metav1.DeleteOptions{})
			},
		} {
			for err := do(); err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) && all.Err() == nil; err = do() {
				<-time.After(100 * time.Millisecond)
			}
		}
		<-time.After(time.Second)
	}
}

// again is for what is not there yet.
func again(err error) error {
	if apierrors.IsNotFound(err) {
		return errors.New("not yet")
	}
	return err
}

// definitions are those of custom resources; definedGroup is the group of one of them.
var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func definedGroup(name string) string { return name + ".example.com" }

func definition(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things." + definedGroup(name)},
		"spec": map[string]any{
			"group": definedGroup(name), "scope": "Namespaced", "names": map[string]any{"plural": "things", "kind": "Thing"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	}}
}

const churned = "churn-" // begins the names of these namespaces

// orphans waits until all these namespaces are gone, and counts the claims that are left in them.
func (w *world) orphans(t *testing.T) (n int) {
	t.Helper()
	suite.Eventually(t, 2*time.Minute, "namespaces end", func() (bool, string) {
		left := slices.DeleteFunc(must.Get(w.core.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}))(t).Items, func(n corev1.Namespace) bool {
			return !strings.HasPrefix(n.Name, churned)
		})
		return len(left) == 0, fmt.Sprint(len(left))
	})
	return len(must.Get(w.core.ResourceV1().ResourceClaims("").List(t.Context(), metav1.ListOptions{}))(t).Items)
}
