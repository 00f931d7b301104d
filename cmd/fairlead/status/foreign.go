package status

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/latest"
)

// foreign watches for conditions that other writers change. A nil *foreign does nothing.
type foreign struct {
	writer  *Writer
	wake    chan<- time.Time // one slot: there is something to take
	running sync.WaitGroup
	end     context.CancelFunc // of the watch; nil before the first one

	mu    sync.Mutex                               // guards what follows
	ended bool                                     // the watch has ended, so another list is needed
	seen  map[string]*apiregistrationv1.APIService // :: APIService → its state, without spec. Bounded by their number; nil means none
}

// loss is how often another writer has replaced a condition.
type loss struct {
	times int
	last  time.Time
}

// warnAfter is the number of losses after which another writer is logged.
const warnAfter = 3

// watch starts a new watch after a list. If the watch ends by itself, everything is listed again
// after lastRetry.
func (f *foreign) watch(ctx context.Context, after string) {
	if f == nil {
		return
	}
	if f.end != nil {
		f.end()
	}
	ctx, f.end = context.WithCancel(ctx)
	f.running.Go(func() { // ends with stop or the next list
		f.receive(ctx, after)
		select {
		case <-ctx.Done():
		case <-time.After(lastRetry):
			f.mu.Lock()
			defer f.mu.Unlock()
			f.ended = true
			latest.Wake(f.wake)
		}
	})
}

// receive records the events of a watch.
func (f *foreign) receive(ctx context.Context, after string) {
	w, err := f.writer.config.APIServices.Watch(ctx, metav1.ListOptions{ResourceVersion: after})
	if err != nil {
		return
	}
	defer w.Stop()
	defer context.AfterFunc(ctx, w.Stop)()
	for e := range w.ResultChan() {
		if o, ok := e.Object.(*apiregistrationv1.APIService); ok {
			f.mu.Lock()
			if f.seen == nil {
				f.seen = map[string]*apiregistrationv1.APIService{}
			}
			f.seen[o.Name] = &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}, Status: o.Status}
			f.mu.Unlock()
			latest.Wake(f.wake)
		}
	}
}

// take returns the states seen since the last call, and whether the watch has ended.
func (f *foreign) take() (seen map[string]*apiregistrationv1.APIService, ended bool) {
	if f == nil {
		return nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, ended = f.seen, f.ended
	f.seen, f.ended = nil, false
	return seen, ended
}

func (f *foreign) stop() {
	if f.end != nil {
		f.end()
	}
	f.running.Wait()
}

// compare finds conditions that other writers have changed, and has them replaced at once. After
// each loss it waits longer, up to relist: a kube-apiserver's own aggregator over the same keys
// would always write again.
func (t *term) compare(seen map[string]*apiregistrationv1.APIService, now table) {
	differ := map[string]bool{}
	for name, o := range seen {
		have := t.of(name)
		if order, err := resourceversion.CompareResourceVersion(o.ResourceVersion, have.version); err == nil && order <= 0 {
			continue // our own, or older than the list
		}
		t.entries[name] = have
		before := *have
		if have.read(o, t.writer.condition); have.condition == before.condition && have.uid == before.uid {
			continue
		}
		differ[name] = true
		if have.uid == before.uid && before.condition != (condition{}) {
			t.lose(name, have)
		}
	}
	if len(differ) == 0 {
		return
	}
	for _, e := range now.Entries() {
		if differ[e.Name] && e.Object.UID == t.entries[e.Name].uid { // otherwise the table will bring the new object
			t.todo[e.Name] = e
		}
	}
}

// lose records that another writer has replaced a condition.
func (t *term) lose(name string, have *written) {
	l := &have.lost
	if time.Since(l.last) > 2*relist {
		l.times = 0
	}
	l.times, l.last = l.times+1, time.Now()
	if l.times == 1 {
		return
	}
	have.notBefore = l.last.Add(min(spacing<<min(l.times, 10), relist))
	if l.times == warnAfter {
		t.writer.log.Warn("another writer writes this condition too: replacing it less and less often", "apiservice", name, "condition", t.writer.condition)
	}
}
