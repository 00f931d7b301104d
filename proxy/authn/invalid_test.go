package authn

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A token that the local apiserver calls invalid was reviewed: its sender gets 401.
func TestInvalidToken(t *testing.T) {
	c, asked := fake.NewClientset(), 0
	c.PrependReactor("create", "tokenreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "TokenReview"}, "", nil)
	})
	if _, ok, err := TokenReview(c.AuthenticationV1())(t.Context(), "x"); ok || !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("%v, %v", ok, err)
	}
	check.Same(t, 1, asked, "reviews")
}
