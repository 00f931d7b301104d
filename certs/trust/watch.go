package trust

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Watch follows one ConfigMap, or the object of a registry.Backend's Reference, until ctx ends: it calls changed with
// its data, once at the start and after every change. An error that wraps fs.ErrNotExist means that it does not exist
// (now). Any other means that it could not be read and that the former data stays valid. Calls do not overlap.
type Watch func(ctx context.Context, ref types.NamespacedName, changed func(data map[string][]byte, err error)) error

// watches are the watches of objects with backends' bundles, one per object. Only Run's goroutine calls sync.
type watches struct {
	t       *Trust
	running map[types.NamespacedName]context.CancelFunc
	done    sync.WaitGroup

	// mu guards seen, the last state of each object, for backends that refer to it later. It also
	// keeps an older state from being delivered after a newer one.
	mu   sync.Mutex
	seen map[types.NamespacedName]object
}

type object struct {
	data map[string][]byte
	err  error
	read map[string]*view // by key, for all who refer to it: parsed, a bundle of all public CAs is large
}

type use struct {
	backend *backend
	spec    *registry.Backend
	key     string
}

// sync starts and ends watches until there is one for each reference. The table bounds them.
func (w *watches) sync(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := w.t.references()
	for ref, cancel := range w.running {
		if _, ok := wanted[ref]; !ok {
			cancel()
			delete(w.running, ref)
			delete(w.seen, ref)
		}
	}
	for ref, uses := range wanted {
		if o, known := w.seen[ref]; known {
			deliver(uses, o)
		}
		if w.running[ref] != nil {
			continue
		}
		wctx, cancel := context.WithCancel(ctx)
		w.running[ref] = cancel
		w.done.Go(func() {
			_ = w.t.cfg.Watch(wctx, ref, func(data map[string][]byte, err error) {
				w.changed(wctx, ref, object{data, err, make(map[string]*view)})
			}) // that of wctx
		})
	}
}

// changed takes a change of an object. If that cannot be read now, its former state stays valid.
func (w *watches) changed(ctx context.Context, ref types.NamespacedName, o object) {
	if o.err != nil && !errors.Is(o.err, fs.ErrNotExist) {
		w.t.cfg.Logger.Warn("reading bundle", "object", ref.String(), "err", o.err)
		return
	}
	defer w.t.logSaid()
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	w.seen[ref] = o
	deliver(w.t.references()[ref], o)
}

func deliver(uses []use, o object) {
	for _, u := range uses {
		data, err := o.data[u.key], o.err
		if err == nil && len(data) == 0 { // it would mean the system's roots, but a reference asks for a bundle
			err = fmt.Errorf("key %q is empty or missing", u.key)
		}
		o.read[u.key] = u.backend.referenced(u.spec, data, err, o.read[u.key])
	}
}

// references returns, for each object, the backends whose bundle it has.
func (t *Trust) references() map[types.NamespacedName][]use {
	refs := make(map[types.NamespacedName][]use)
	for _, b := range t.all() {
		b.mu.Lock()
		spec := b.spec
		b.mu.Unlock()
		switch ref, key := spec.Reference(); {
		case spec.CAFrom == "" || spec.Insecure:
		case ref.Name == "" || key == "":
			b.referenced(spec, nil, fmt.Errorf("the reference %q is not <configmap>/<key>", spec.CAFrom), nil)
		default:
			refs[ref] = append(refs[ref], use{b, spec, key})
		}
	}
	return refs
}
