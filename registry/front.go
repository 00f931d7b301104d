package registry

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/fairlead-proxy/fairlead/registry/behind"
)

// nameOf returns the name of a Service. It is zero if ref is nil.
func nameOf(ref *apiregistrationv1.ServiceReference) types.NamespacedName {
	if ref == nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// front sets Entry.Front and FrontSays. An APIService that would only lead back to Fairlead has a fault.
func (b *builder) front(e *Entry, byURL bool) (loop Verdict) {
	ref, own := e.Object.Spec.Service, b.options.Front
	known := behind.Server(e.Object) != ref
	if ref != nil && (known || byURL && nameOf(ref) == own) {
		e.Front = behind.Format(ref)
	}
	if known && own.Name != "" && nameOf(ref) != own {
		e.Problems = append(e.Problems, fmt.Sprintf("annotation %s counts, but the spec names %s, which is not Fairlead's: adopt it again, or remove the annotation", behind.Service, behind.Format(ref)))
	}
	if c := helper.GetAPIServiceConditionByType(e.Object, apiregistrationv1.Available); c != nil && e.Front != "" {
		e.FrontSays = fmt.Sprintf("%s, %s: %s", c.Status, c.Reason, c.Message)
	}
	if !byURL && serviceOf(e.Object) == own {
		return fault(ReasonServiceAccessError, "service/%s in %q is Fairlead's own: annotation %s must name the extension server's", own.Name, own.Namespace, behind.Service).fault
	}
	return loop
}

// Sent returns the table of the APIServices that the cluster's aggregator sends to Fairlead: all
// that this aggregator may be told, or it would tell Fairlead what it has been told by Fairlead. It
// is made once, by the first of those who follow it.
func (t *Table) Sent() *Table {
	t.once.Do(func() {
		t.sent = t.of(slices.DeleteFunc(slices.Clone(t.entries), func(e *Entry) bool { return e.Front == "" }))
	})
	return t.sent
}
