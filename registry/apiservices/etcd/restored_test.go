package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A client with a revision that etcd has not reached, as after a restore, must list again; any
// other revision is served.
func TestRevisionFromTheFuture(t *testing.T) {
	s := open(t, Config{Endpoints: testserver.RunEtcd(t, nil).Endpoints()})
	must.Do(t, create(t, s, "v1.a.io"))
	must.Soon(t, 20*time.Second, "the cache is ready", s.cached.Ready)
	now := must.Get(s.raw.now(t.Context()))(t)
	if err := s.raw.notFuture(t.Context(), fmt.Sprint(now)); err != nil {
		t.Errorf("the newest: %v", err)
	}
	from := s.Storage()["apiservices"].(interface { //nolint:forcetypeassert // it is both
		rest.Lister
		rest.Watcher
	})
	for version, expired := range map[string]bool{"": false, "0": false, "1": false, fmt.Sprint(now): false, fmt.Sprint(now + 1000): true} {
		if _, err := from.List(asked(t), &metainternal.ListOptions{ResourceVersion: version}); apierrors.IsResourceExpired(err) != expired || !expired && err != nil {
			t.Errorf("a list from %q: %v", version, err)
		}
		ctx, cancel := context.WithCancel(asked(t))
		w, err := from.Watch(ctx, &metainternal.ListOptions{ResourceVersion: version})
		if apierrors.IsResourceExpired(err) != expired {
			t.Errorf("a watch from %q: %v", version, err)
		}
		if w != nil {
			w.Stop()
		}
		cancel()
	}
}

// A cache that is still empty accepts every revision, without waiting.
func TestRevisionBeforeTheCache(t *testing.T) {
	s := open(t, Config{Endpoints: []string{"http://127.0.0.1:1"}})
	if err := (&present{s.raw, s.cached, s.raw}).known(t.Context(), "5"); err != nil {
		t.Error(err)
	}
}
