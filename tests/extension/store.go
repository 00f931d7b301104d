package extension

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// Bytes that a store keeps: more than any test creates, and little for the machine.
	maxStoreBytes = 64 << 20
	// Watches that a store serves: ten times those of the benchmarks.
	maxWatchers = 20_000
	// Queued events of a slow watcher. After that its watch ends, as with kube-apiserver.
	maxPending = 128
)

// store keeps the widgets of one group, and notifies watchers.
type store struct {
	mu       sync.Mutex         // guards the fields below
	objects  map[string]*widget // :: namespace/name → widget
	bytes    int
	version  int64
	watchers map[*watcher]struct{}
}

// widget is immutable.
type widget struct {
	namespace, name string
	// The object after its apiVersion, which depends on the request: {"apiVersion":"<here>"<rest>.
	rest []byte
}

func (o *widget) in(gv groupVersion) []byte {
	return fmt.Appendf(nil, `{"apiVersion":%q%s`, gv, o.rest)
}

func newStore(gv groupVersion, seeds int) *store {
	st := &store{objects: map[string]*widget{}, watchers: map[*watcher]struct{}{}}
	for i := range cmp.Or(seeds, 100) {
		c := call{gv: gv, namespace: "default", name: fmt.Sprintf("widget-%03d", i)}
		// 760 bytes of payload and Kubernetes' fields make an object of about 1 KB.
		doc := map[string]any{"spec": map[string]any{"payload": string(filler(760))}}
		if _, err := st.put(c, doc, map[string]any{}, true); err != nil {
			panic(err) // cannot fail: within the bounds
		}
	}
	return st
}

func (st *store) get(namespace, name string) *widget {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.objects[namespace+"/"+name]
}

// list returns the widgets of a namespace; empty: of all.
func (st *store) list(namespace string) ([]*widget, int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.listLocked(namespace), st.version
}

func (st *store) listLocked(namespace string) []*widget {
	var all []*widget
	for _, o := range st.objects {
		if namespace == "" || o.namespace == namespace {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *widget) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	return all
}

// put stores doc under c's name: as a new object if fresh, else in place of the existing one.
func (st *store) put(c call, doc, meta map[string]any, fresh bool) (*widget, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if prefix, _ := meta["generateName"].(string); c.name == "" && prefix != "" {
		c.name = fmt.Sprintf("%s%05x", prefix, st.version+1)
	}
	key := c.namespace + "/" + c.name
	old := st.objects[key]
	switch {
	case c.name == "" || c.namespace == "":
		return nil, apierrors.NewBadRequest("an object needs a name and a namespace")
	case fresh && old != nil:
		return nil, apierrors.NewAlreadyExists(c.resource(), c.name)
	case !fresh && old == nil:
		return nil, apierrors.NewNotFound(c.resource(), c.name)
	case st.bytes >= maxStoreBytes:
		return nil, apierrors.NewTooManyRequestsError("the store is full")
	}
	meta["name"], meta["namespace"], meta["resourceVersion"] = c.name, c.namespace, strconv.FormatInt(st.version+1, 10)
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012x", st.version+1)
		meta["creationTimestamp"] = "2026-01-01T00:00:00Z"
	}
	doc["metadata"], doc["kind"] = meta, "Widget"
	delete(doc, "apiVersion")
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encoding object: %w", err)
	}
	b[0] = ',' // the part after apiVersion; doc has at least a kind
	o := &widget{namespace: c.namespace, name: c.name, rest: b}
	event := "ADDED"
	if old != nil {
		st.bytes -= len(old.rest)
		event = "MODIFIED"
	}
	st.objects[key] = o
	st.bytes += len(o.rest)
	st.changedLocked(event, o)
	return o, nil
}

// delete removes one widget, or with an empty name all of the namespace, and returns how many.
func (st *store) delete(namespace, name string) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	n := 0
	for key, o := range st.objects {
		if (name == "" || o.name == name) && (namespace == "" && name == "" || o.namespace == namespace) {
			delete(st.objects, key)
			st.bytes -= len(o.rest)
			st.changedLocked("DELETED", o)
			n++
		}
	}
	return n
}

func (st *store) changedLocked(event string, o *widget) {
	st.version++
	st.tellLocked(change{event, o.namespace, o})
}

// change is an event of a watch.
type change struct {
	event     string
	namespace string  // empty: for all watches
	widget    *widget // nil: an event without content
}

// watcher is one watch; the store closes events if it is too slow.
type watcher struct {
	namespace string
	events    chan change
}

// watch starts a watch and returns the existing objects; nil if there are too many watches.
func (st *store) watch(namespace string) (*watcher, []*widget) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.watchers) >= maxWatchers {
		return nil, nil
	}
	w := &watcher{namespace: namespace, events: make(chan change, maxPending)}
	st.watchers[w] = struct{}{}
	return w, st.listLocked(namespace)
}

func (st *store) unwatch(w *watcher) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.watchers, w)
}

func (st *store) tell(c change) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.tellLocked(c)
}

func (st *store) tellLocked(c change) {
	for w := range st.watchers {
		if w.namespace != "" && c.namespace != "" && w.namespace != c.namespace {
			continue
		}
		select {
		case w.events <- c:
		default:
			delete(st.watchers, w)
			close(w.events)
		}
	}
}
