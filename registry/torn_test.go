package registry

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// If a watch ends within a revision, another list finds the events that it missed.
func TestTornRevision(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lists := 0
	l := &lister{torn: true, example: &apiregistrationv1.APIService{}, log: slog.New(slog.DiscardHandler), from: &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			list := &apiregistrationv1.APIServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "4"}}
			if lists++; lists == 1 {
				list.Items = append(list.Items, *stored("a.io", "x"), *stored("b.io", "x"))
			}
			return list, nil
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, apierrors.NewInvalid(apiregistrationv1.SchemeGroupVersion.WithKind("APIService").GroupKind(), "", nil)
			}
			w := watch.NewFakeWithChanSize(1, false)
			if lists == 1 && o.ResourceVersion == "4" { // both are deleted at revision 5, the watch reports one
				gone := stored("a.io", "x")
				gone.ResourceVersion = "5"
				w.Delete(gone)
				w.Stop()
			}
			return w, nil
		},
	}}
	all := make(chan int, 9)
	go l.reflect(ctx, &store{
		set:     func(types.NamespacedName, runtime.Object) {},
		replace: func(list map[types.NamespacedName]runtime.Object) { all <- len(list) },
	})
	for want := 2; want >= 0; want -= 2 {
		select {
		case n := <-all:
			check.Same(t, want, n, "entries in a list")
		case <-ctx.Done():
			t.Fatalf("no list of %d", want)
		}
	}
}

// An outage is logged in one line, however many requests fail.
func TestOutageIsOneLine(t *testing.T) {
	var log strings.Builder
	l := &lister{example: &apiregistrationv1.APIService{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, err := range []error{errors.New("away"), errors.New("away"), errors.New("still starting"), errors.New("still starting"), nil, errors.New("away")} {
		l.note(t.Context(), err)
	}
	check.Same(t, 3, strings.Count(log.String(), "\n"), "lines in %s", log.String())
}

// What may not be read from the start counts as empty, even if the refusal has no message. A
// permission that is revoked later takes nothing away.
func TestDenied(t *testing.T) {
	forbidden := func(message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Message: message}}
	}
	for _, tc := range []struct {
		name    string
		answers []error
		want    int
	}{
		{"from the start", []error{forbidden("no"), forbidden("no")}, 1},
		{"without a message", []error{forbidden(""), forbidden("")}, 1},
		{"later", []error{nil, forbidden("no")}, 0},
	} {
		got := 0
		l := &lister{log: slog.New(slog.DiscardHandler), denied: func() { got++ }}
		for _, err := range tc.answers {
			l.note(t.Context(), err)
		}
		check.Same(t, tc.want, got, "%s: times denied", tc.name)
	}
}
