package builtin

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// What Kubernetes v1.37 has added to its lists. An unknown version comes last, so a v1 would not be preferred.
func TestNewest(t *testing.T) {
	for gv, want := range map[schema.GroupVersion][2]int32{
		{Group: "storagemigration.k8s.io", Version: "v1"}: {15800, 15},
		{Group: "scheduling.k8s.io", Version: "v1beta1"}:  {16600, 9},
		{Group: "scheduling.k8s.io", Version: "v1alpha3"}: {16600, 3},
		{Group: "lifecycle.k8s.io", Version: "v1alpha1"}:  {15700, 1},
		{Group: "batch", Version: "v9"}:                   {17400, 1},
		{Group: "crd.example.com", Version: "v1"}:         {1000, 100},
	} {
		group, version, ok := Priorities(gv)
		check.Same(t, want, [2]int32{group, version}, "priorities of %s", gv)
		own := gv.Group != "crd.example.com"
		check.Same(t, [2]bool{own, own}, [2]bool{ok, Group(gv.Group)}, "%s is built in, and its group", gv)
	}
}
