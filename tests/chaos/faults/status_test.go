//go:build e2e

package faults

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// testStatus lets Fairlead write its own condition, beside the one of kube-apiserver's controllers.
// testRoles of tests/e2e/operate does it with only the permissions of the shipped manifests.
func testStatus(t *testing.T, d *door) {
	x := d.w.newDoor(t, "--write-status")
	b, servers := x.backend(t, 1)
	is := func(want string) func() bool {
		return func() bool {
			own, theirs := b.written(t)
			return own == want && theirs
		}
	}
	eventually(t, "written as available", is("True"))
	must.Do(t, servers[0].Set(extension.Fault{Kind: extension.Dead}))
	eventually(t, "written as unavailable", is("False"))
	must.Do(t, servers[0].Set())
	eventually(t, "written as available again", is("True"))
	applied := 0
	for _, f := range must.Get(d.w.services.Get(t.Context(), b.apiService, metav1.GetOptions{}))(t).ManagedFields {
		if f.Manager == "fairlead" && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "status" {
			applied++
		}
	}
	if applied != 1 {
		t.Errorf("the status has %d parts that Fairlead applied", applied)
	}
	local := []byte(`{"spec":{"service":null,"caBundle":null}}`)
	must.Get(d.w.services.Patch(t.Context(), b.apiService, types.MergePatchType, local, metav1.PatchOptions{}))(t)
	eventually(t, "taken away from a Local one", is(""))
	if n := x.scrape()[`fairlead_status_write_total{result="failed"}`]; n > 0 {
		t.Errorf("%v writes failed", n)
	}
}

// written returns the status of Fairlead's condition, or "" without one, and whether the one of
// kube-apiserver is there.
func (b *backend) written(t *testing.T) (own string, theirs bool) {
	t.Helper()
	object := must.Get(b.w.services.Get(t.Context(), b.apiService, metav1.GetOptions{}))(t)
	for _, c := range object.Status.Conditions {
		switch c.Type {
		case "fairlead.dev/Available":
			own = string(c.Status)
		case "Available":
			theirs = true
		}
	}
	return own, theirs
}
