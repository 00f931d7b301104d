package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// clients are an administrator's, of one kube-apiserver and past the doors.
type clients struct {
	core   kubernetes.Interface
	groups aggregator.Interface
}

func (w *world) connect(context.Context) error {
	for i := range w.APIServers {
		rc := w.EndpointOf(i).RESTConfig(w.Admin())
		rc.Timeout = 5 * time.Second // a stopped apiserver does not answer; the other one may
		core, err1 := kubernetes.NewForConfig(rc)
		groups, err2 := aggregator.NewForConfig(rc)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		w.kube = append(w.kube, clients{core, groups})
	}
	return nil
}

// api asks one kube-apiserver after the other until f succeeds: what f does must bear being done
// twice. It gives up after some minutes, when a control plane that was broken on purpose should
// long be whole.
func (w *world) api(ctx context.Context, f func(context.Context, clients) error) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		err := f(ctx, w.kube[n%len(w.kube)])
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("asking the cluster: %w (%w)", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// present takes what exists already for made, absent what is gone already for deleted.
func present(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func absent(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// grant makes the namespace and lets the callers do everything in it.
func (w *world) grant(ctx context.Context) error {
	meta := metav1.ObjectMeta{Name: namespace}
	return w.api(ctx, func(ctx context.Context, k clients) error {
		_, err := k.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{})
		if err := present(err); err != nil {
			return err
		}
		_, err = k.core.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"alpha.soak.example.com", "beta.soak.example.com", "gamma.soak.example.com"}, Resources: []string{"*"}, Verbs: []string{"*"}},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "create", "watch"}},
		}}, metav1.CreateOptions{})
		if err := present(err); err != nil {
			return err
		}
		_, err = k.core.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: namespace},
			Subjects: []rbacv1.Subject{
				{APIGroup: rbacv1.GroupName, Kind: "Group", Name: namespace},
				{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:serviceaccounts:" + namespace},
			},
		}, metav1.CreateOptions{})
		if err := present(err); err != nil {
			return err
		}
		_, err = k.core.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: beacon}}, metav1.CreateOptions{})
		return present(err)
	})
}
