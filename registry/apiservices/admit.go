package apiservices

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"github.com/fairlead-proxy/fairlead/registry/apiservices/etcd"
)

// protection rejects what the table would refuse to route: a remote that claims a protected group.
type protection func(group string) bool

var _ admission.ValidationInterface = protection(nil)

// Handles implements admission.Interface.
func (protection) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Validate implements admission.ValidationInterface.
func (p protection) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	o, ok := a.GetObject().(*apiregistration.APIService)
	if !ok || a.GetSubresource() != "" || !p(o.Spec.Group) {
		return nil
	}
	if _, byURL := o.Annotations[etcd.URLAnnotation]; !byURL && o.Spec.Service == nil {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("the group %q is protected: no extension server may claim it (--protected-groups)", o.Spec.Group))
}
