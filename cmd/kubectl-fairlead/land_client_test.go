package main

import (
	"errors"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeversion "k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// client is what an administrator's kubeconfig leads to.
func (c *land) client() *fake.Clientset {
	all := append([]runtime.Object{c.slices}, c.more...)
	for _, n := range c.nodes {
		all = append(all, n)
	}
	for _, p := range c.pods {
		all = append(all, p)
	}
	kube := fake.NewClientset(all...)
	kube.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &kubeversion.Info{GitVersion: c.release}
	react := func(verb, resource string, answer func(a clienttesting.Action) runtime.Object) {
		kube.PrependReactor(verb, resource, func(a clienttesting.Action) (bool, runtime.Object, error) { return true, answer(a), nil })
	}
	react("create", "selfsubjectreviews", func(clienttesting.Action) runtime.Object {
		return &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: c.user}}}
	})
	react("create", "subjectaccessreviews", func(a clienttesting.Action) runtime.Object {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		if strings.HasPrefix(r.Spec.User, "system:serviceaccount:") && !slices.Contains(r.Spec.Groups, "system:serviceaccounts:kube-system") {
			return r // as a cluster that grants something to the group
		}
		r.Status.Allowed = c.granted(r.Spec.User, r.Spec.ResourceAttributes)
		r.Status.EvaluationError = c.undecided
		return r
	})
	react("create", "selfsubjectaccessreviews", func(a clienttesting.Action) runtime.Object {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		r.Status.Allowed = c.granted(c.user, r.Spec.ResourceAttributes)
		return r
	})
	react("list", "pods", func(a clienttesting.Action) runtime.Object {
		list := &corev1.PodList{}
		of := a.(clienttesting.ListAction).GetListRestrictions()
		node, one := of.Fields.RequiresExactMatch("spec.nodeName")
		for _, p := range c.pods {
			if (!one || p.Spec.NodeName == node) && of.Labels.Matches(labels.Set(p.Labels)) {
				list.Items = append(list.Items, *p)
			}
		}
		return list
	})
	kube.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetResource().Resource == c.forbidden {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: c.forbidden}, "", errors.New("no role"))
		}
		return false, nil, nil
	})
	return kube
}
