//go:build e2e

package faults

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/extension"
)

// testStatus has Fairlead write its own condition, beside the one that kube-apiserver's controllers write.
func testStatus(t *testing.T, d *door) {
	x := d.w.newDoor(t, d.lane, "--write-status")
	b := d.w.newBackend()
	s := b.serve(t, 1, extension.Config{})[0]
	b.register(t, s.Addr())
	b.await(t, x)
	is := func(want string) func() bool {
		return func() bool {
			object, err := d.w.groups.ApiregistrationV1().APIServices().Get(t.Context(), b.apiService(), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range object.Status.Conditions {
				if c.Type == "fairlead.dev/Available" {
					return string(c.Status) == want
				}
			}
			return false
		}
	}
	eventually(t, longest, "written as available", is("True"))
	if err := s.Set(extension.Fault{Kind: extension.Dead}); err != nil {
		t.Fatal(err)
	}
	eventually(t, longest, "written as unavailable", is("False"))
}
