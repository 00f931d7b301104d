//go:build e2e

package faults

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// testStatus lets Fairlead write its own condition by server-side apply, beside that of kube-apiserver's controllers.
// testRoles of tests/e2e/operate does it with only the permissions of the shipped manifests.
func testStatus(t *testing.T, d *door) {
	x := d.w.newDoor(t, "--write-status")
	r := x.remote(t, 1, nil)
	is := func(want string) {
		t.Helper()
		suite.Eventually(t, longest, want, func() (bool, string) {
			o := must.Get(d.w.services.Get(t.Context(), "v1."+r.group, metav1.GetOptions{}))(t)
			status := map[apiregistrationv1.APIServiceConditionType]apiregistrationv1.ConditionStatus{}
			for _, c := range o.Status.Conditions {
				status[c.Type] = c.Status
			}
			parts := slices.DeleteFunc(o.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
				return f.Manager != "fairlead" || f.Operation != metav1.ManagedFieldsOperationApply || f.Subresource != "status"
			})
			got := fmt.Sprintf("%q in %d parts, theirs %t", status["fairlead.dev/Available"], len(parts), status[apiregistrationv1.Available] != "")
			return got == want, got
		})
	}
	is(`"True" in 1 parts, theirs true`)
	must.Do(t, r.servers[0].Set(extension.Fault{Kind: extension.Dead}))
	is(`"False" in 1 parts, theirs true`)
	must.Do(t, r.servers[0].Set())
	is(`"True" in 1 parts, theirs true`)
	local := []byte(`{"spec":{"service":null,"caBundle":null}}`)
	must.Get(d.w.services.Patch(t.Context(), "v1."+r.group, types.MergePatchType, local, metav1.PatchOptions{}))(t)
	is(`"" in 1 parts, theirs true`)
	if n := x.scrape()[`fairlead_status_write_total{result="failed"}`]; n > 0 {
		t.Errorf("%v writes failed", n)
	}
}
