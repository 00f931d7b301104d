package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

// Explain says why a review failed, which the answer to the request does not.
func TestExplainFailedReview(t *testing.T) {
	w := newWorld(t, worldConfig{reviewed: func() error { return errors.New("dial tcp 10.0.0.1:6443: connection refused") }})
	_, denied := w.proxy.Explain(t.Context(), http.MethodGet, remoteGV+"/widgets", "", &user.DefaultInfo{Name: "jane"})
	check.Same(t, "the request could not be authorized: authorizing: dial tcp 10.0.0.1:6443: connection refused", fmt.Sprint(denied), "denied")
}

// Explain says that the user's request would get 429 now, without counting one.
func TestExplainAtTheLimit(t *testing.T) {
	w := newWorld(t, worldConfig{Config: Config{MaxInFlight: 2}})
	code := func(target string) int {
		d, denied := w.proxy.Explain(t.Context(), http.MethodGet, target, "", &user.DefaultInfo{Name: "bob"})
		if denied != nil {
			t.Errorf("%s: %v", target, denied)
		}
		status, _ := errors.AsType[*apierrors.StatusError](d.Err)
		if status == nil {
			return 0
		}
		return int(status.ErrStatus.Code)
	}
	widgets := remoteGV + "/widgets"
	check.Same(t, 0, code(widgets), "at rest")
	ann, _ := w.proxy.limits.reads.places.Take(bound.Source{User: "ann"}, 1, 2)
	carol, _ := w.proxy.limits.reads.places.Take(bound.Source{User: "carol"}, 1, 2)
	check.Same(t, [2]int{429, 0}, [2]int{code(widgets), code(widgets + "?watch=1")}, "the server is full")
	ann.Leave()
	carol.Leave()
	fillUp(t, w.upstream(), true)
	before := w.upstream().Limits()
	check.Same(t, [2]int{0, 429}, [2]int{code(widgets), code(widgets + "?watch=1")}, "the backend has no place for a watch")
	check.Same(t, before[0].Refused, w.upstream().Limits()[0].Refused, "refused requests")
}
