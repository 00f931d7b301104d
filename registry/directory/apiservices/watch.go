package apiservices

import (
	"context"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// bookmarkInterval is kube-apiserver's (storage/cacher: bookmarkFrequency).
const bookmarkInterval = time.Minute

// Watch implements rest.Watcher.
func (s *store) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	state := s.state()
	w := &watcher{store: s, wants: predicateOf(options), events: make(chan watch.Event), bookmarks: options.AllowWatchBookmarks}
	w.list = options.SendInitialEvents != nil && *options.SendInitialEvents
	synthetic := options.ResourceVersion == "" || options.ResourceVersion == "0"
	revision, err := wanted(state, options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	switch {
	case w.list, synthetic && options.SendInitialEvents == nil:
		// The state as it is, then what changes. Without a resource version that is what clients older than sendInitialEvents expect.
		w.initial, w.at = state, state.revision
	case synthetic:
		w.at = state.revision
	case revision < state.floor:
		return nil, apierrors.NewResourceExpired("too old resource version: " + options.ResourceVersion + " (" + strconv.FormatUint(state.floor, 10) + ")")
	default:
		w.at = revision
	}
	ctx, w.cancel = context.WithCancel(ctx)
	go w.run(ctx) // ends with ctx or Stop
	return w, nil
}

// watcher is one watch. Its goroutine is the only sender on events and closes it.
type watcher struct {
	store     *store
	wants     storage.SelectionPredicate
	events    chan watch.Event
	cancel    context.CancelFunc
	bookmarks bool
	list      bool
	// initial is sent before anything else. Nil: nothing is.
	initial *state
	// at is the revision up to which the client knows everything.
	at uint64
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.cancel() }

func (w *watcher) run(ctx context.Context) {
	defer close(w.events)
	defer w.cancel()
	if w.initial != nil && !w.sendInitial(ctx) {
		return
	}
	mark := time.NewTicker(bookmarkInterval)
	defer mark.Stop()
	for {
		state := w.store.state()
		if w.at < state.floor {
			// The client reads more slowly than things change. It must list again.
			w.send(ctx, watch.Event{Type: watch.Error, Object: &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version",
			}})
			return
		}
		for _, c := range state.since(w.at) {
			if !w.tell(ctx, c) {
				return
			}
		}
		w.at = max(w.at, state.revision)
		select {
		case <-state.superseded:
		case <-mark.C:
			if w.bookmarks && !w.bookmark(ctx, nil) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (w *watcher) sendInitial(ctx context.Context) bool {
	for _, o := range w.initial.objects {
		if matches(w.wants, o) && !w.send(ctx, watch.Event{Type: watch.Added, Object: o.DeepCopy()}) {
			return false
		}
	}
	if !w.list || !w.bookmarks {
		return true
	}
	return w.bookmark(ctx, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

// bookmark tells the client how far it is.
func (w *watcher) bookmark(ctx context.Context, annotations map[string]string) bool {
	o := &apiregistrationv1.APIService{}
	o.ResourceVersion, o.Annotations = strconv.FormatUint(w.at, 10), annotations
	return w.send(ctx, watch.Event{Type: watch.Bookmark, Object: o})
}

// tell sends a change as it looks through the selector: what begins to match is added, what ceases to is deleted.
func (w *watcher) tell(ctx context.Context, c change) bool {
	after := c.kind != watch.Deleted && matches(w.wants, c.object)
	before := c.before != nil && matches(w.wants, c.before)
	switch {
	case after && before:
		return w.send(ctx, watch.Event{Type: watch.Modified, Object: c.object.DeepCopy()})
	case after:
		return w.send(ctx, watch.Event{Type: watch.Added, Object: c.object.DeepCopy()})
	case before:
		// The last state that matched, with the revision of the change: clients resume from there.
		o := c.before.DeepCopy()
		o.ResourceVersion = strconv.FormatUint(c.revision, 10)
		return w.send(ctx, watch.Event{Type: watch.Deleted, Object: o})
	}
	return true
}

func (w *watcher) send(ctx context.Context, e watch.Event) bool {
	select {
	case w.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
