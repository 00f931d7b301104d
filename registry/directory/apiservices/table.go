package apiservices

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// ConvertToTable implements rest.TableConvertor with the columns of kube-aggregator (pkg/registry/apiservice/etcd). Where a URL takes the place of the Service, it does so here.
func (s *store) ConvertToTable(_ context.Context, o, options runtime.Object) (*metav1.Table, error) {
	docs := metav1.ObjectMeta{}.SwaggerDoc()
	t := &metav1.Table{}
	if opts, ok := options.(*metav1.TableOptions); !ok || !opts.NoHeaders {
		t.ColumnDefinitions = []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: docs["name"]},
			{Name: "Service", Type: "string", Description: "The reference to the service that hosts this API endpoint."},
			{Name: "Available", Type: "string", Description: "Whether this service is available."},
			{Name: "Age", Type: "string", Description: docs["creationTimestamp"]},
		}
	}
	if m, err := meta.ListAccessor(o); err == nil {
		t.ResourceVersion, t.Continue, t.RemainingItemCount = m.GetResourceVersion(), m.GetContinue(), m.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(o); err == nil {
		t.ResourceVersion = m.GetResourceVersion()
	}
	var err error
	t.Rows, err = metatable.MetaToTableRow(o, func(o runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
		a, ok := o.(*apiregistrationv1.APIService)
		if !ok {
			return nil, fmt.Errorf("printing %T: not an APIService", o)
		}
		service := "Local"
		if url := a.Annotations["fairlead.dev/url"]; url != "" {
			service = url
		} else if ref := a.Spec.Service; ref != nil {
			service = ref.Namespace + "/" + ref.Name
		}
		return []any{name, service, available(a), age}, nil
	})
	return t, err
}

// available is the text of the column Available.
func available(a *apiregistrationv1.APIService) string {
	for _, c := range a.Status.Conditions {
		switch {
		case c.Type != apiregistrationv1.Available:
		case c.Status == apiregistrationv1.ConditionTrue || c.Reason == "":
			return string(c.Status)
		default:
			return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
		}
	}
	return string(apiregistrationv1.ConditionUnknown)
}
