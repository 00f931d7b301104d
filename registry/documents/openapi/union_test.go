package openapi

import (
	"bytes"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A union is no larger than one server's document may be, and made once.
func TestUnionIsBounded(t *testing.T) {
	o, gv := newStage(t).o, schema.GroupVersion{Group: "a.example.com", Version: "v1"}
	var of []*document
	for i := range 3 {
		of = append(of, o.newDocument(gv, nil, fmt.Appendf(nil, `{"openapi":"3.0.0","paths":{"/%d":{"description":"%s"}}}`, i, bytes.Repeat([]byte("a"), maxDocument*2/5))))
	}
	d := o.united(gv, of)
	for i, want := range []bool{true, true, false} {
		check.Same(t, want, bytes.Contains(d.json.open(), fmt.Appendf(nil, `"/%d"`, i)), "the document of server %d is in the union", i)
	}
	check.Same(t, [3]bool{true, true, true}, [3]bool{o.united(gv, of) == d, o.united(gv, of[1:2]) == of[1], o.united(gv, nil) == nil},
		"the union of the same, of one and of none is the same, that one and none")
}
