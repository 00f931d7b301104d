package trust

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// rewatchAfter is the pause before an ended watch is started again, ±half: as long as kube-apiserver takes to get over a hiccup, and one object's watch costs little.
const rewatchAfter = 2 * time.Second

// Ref names one ConfigMap or Secret.
type Ref struct {
	// Kind is ConfigMap or Secret. Empty: ConfigMap.
	Kind string
	// Namespace and Name name the object. Never empty.
	Namespace, Name string
}

// Watch follows one object until ctx ends: it calls changed with the object's data, once at the start and after every change. An error that wraps fs.ErrNotExist means that
// there is no such object (now); any other means that it could not be read and that what was known still counts. Calls of changed do not overlap.
type Watch func(ctx context.Context, ref Ref, changed func(data map[string][]byte, err error)) error

// Keep runs the watch until ctx ends and starts it again, after a pause, when it ends before.
func (w Watch) Keep(ctx context.Context, ref Ref, logger *slog.Logger, changed func(data map[string][]byte, err error)) {
	for {
		err := w(ctx, ref, changed)
		if ctx.Err() != nil {
			return
		}
		logger.Warn("watching object ended", "kind", ref.Kind, "object", ref.Namespace+"/"+ref.Name, "err", err)
		pause := time.NewTimer(rewatchAfter/2 + rand.N(rewatchAfter)) //nolint:gosec // jitter
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// watches are the ConfigMaps that some backend's bundle comes from: one watch per object, however many refer to it. Only Run's goroutine calls sync and stop.
type watches struct {
	t       *Trust
	running map[Ref]context.CancelFunc
	done    sync.WaitGroup

	// mu guards seen, the last word on each object, for the backends that come to refer to it later; and it keeps an older word from being delivered after a newer.
	mu   sync.Mutex
	seen map[Ref]object
}

// object is the last word on one ConfigMap.
type object struct {
	data map[string][]byte
	err  error
}

// use is one backend's reference.
type use struct {
	backend *backend
	spec    *registry.Backend
	key     string
}

func newWatches(t *Trust) *watches {
	return &watches{t: t, running: make(map[Ref]context.CancelFunc), seen: make(map[Ref]object)}
}

// sync starts and ends watches so that they are those that the backends ask for. Their number is bounded by the table.
func (w *watches) sync(ctx context.Context) {
	wanted := w.t.references()
	for ref, cancel := range w.running {
		if _, ok := wanted[ref]; !ok {
			cancel()
			delete(w.running, ref)
			w.mu.Lock()
			delete(w.seen, ref)
			w.mu.Unlock()
		}
	}
	for ref, uses := range wanted {
		if w.t.cfg.Watch == nil {
			deliver(uses, object{err: errors.New("references to ConfigMaps are not followed in this configuration")})
			continue
		}
		if _, ok := w.running[ref]; ok {
			w.mu.Lock()
			if o, known := w.seen[ref]; known {
				deliver(uses, o)
			}
			w.mu.Unlock()
			continue
		}
		wctx, cancel := context.WithCancel(ctx)
		w.running[ref] = cancel
		w.done.Go(func() {
			w.t.cfg.Watch.Keep(wctx, ref, w.t.cfg.Logger, func(data map[string][]byte, err error) { w.changed(wctx, ref, object{data, err}) })
		})
	}
}

func (w *watches) stop() {
	for _, cancel := range w.running {
		cancel()
	}
	w.done.Wait()
}

// changed takes the news of one object. An object that cannot be read now says nothing against what it said before.
func (w *watches) changed(ctx context.Context, ref Ref, o object) {
	if o.err != nil && !errors.Is(o.err, fs.ErrNotExist) {
		w.t.cfg.Logger.Warn("reading bundle", "configmap", ref.Namespace+"/"+ref.Name, "err", o.err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	w.seen[ref] = o
	deliver(w.t.references()[ref], o)
}

// deliver gives each backend its key of the object.
func deliver(uses []use, o object) {
	for _, u := range uses {
		data, err := o.data[u.key], o.err
		if err == nil && len(data) == 0 {
			// An empty bundle would mean the system's roots; whoever refers to one means one.
			err = fmt.Errorf("key %q is empty or not there", u.key)
		}
		u.backend.referenced(u.spec, data, err)
	}
}

// references collects which backends get their bundle from which object.
func (t *Trust) references() map[Ref][]use {
	refs := make(map[Ref][]use)
	for _, b := range t.all() {
		b.mu.Lock()
		spec := b.spec
		b.mu.Unlock()
		if spec.CAFrom == "" || spec.Insecure {
			continue
		}
		name, key, ok := strings.Cut(spec.CAFrom, "/")
		if !ok || name == "" || key == "" {
			b.referenced(spec, nil, fmt.Errorf("the reference %q is not <configmap>/<key>", spec.CAFrom))
			continue
		}
		ref := Ref{Kind: "ConfigMap", Namespace: spec.Namespace, Name: name}
		refs[ref] = append(refs[ref], use{b, spec, key})
	}
	return refs
}
