package etcd

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// restored is a storage that is found to be restored just after its revision was read.
type restored struct {
	storage.Interface
	b     *bounded
	ended <-chan struct{} // of the watch
}

func (*restored) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (r *restored) GetCurrentResourceVersion(context.Context) (uint64, error) {
	r.b.watches.Swap(newWatches()).end()
	return 7, nil
}

func (r *restored) Watch(ctx context.Context, _ string, _ storage.ListOptions) (watch.Interface, error) {
	r.ended = ctx.Done()
	return watch.NewEmptyWatch(), nil
}

// A restore ends a watch that has been compared with the revision before it.
func TestRestoreWhileAWatchBegins(t *testing.T) {
	r := &restored{b: new(bounded)}
	r.b.Interface = r
	r.b.watches.Store(newWatches())
	w := must.Get(r.b.Watch(t.Context(), "", storage.ListOptions{ResourceVersion: "7"}))(t)
	defer w.Stop()
	must.Come(t, 10*time.Second, "the watch ends", r.ended)
}
