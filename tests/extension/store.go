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
		// 760 bytes of payload and Kubernetes' fields make an object of about 1 KB.
		doc := object{"metadata": object{"name": fmt.Sprintf("widget-%03d", i)}, "spec": object{"payload": string(filler(760))}}
		if _, err := st.create(call{gv: gv, namespace: "default"}, doc); err != nil {
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

// create stores doc under its name in c's namespace.
func (st *store) create(c call, doc object) (*widget, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	meta, _ := doc["metadata"].(object)
	name, _ := meta["name"].(string)
	if prefix, _ := meta["generateName"].(string); name == "" && prefix != "" {
		name = fmt.Sprintf("%s%05x", prefix, st.version+1)
	}
	key := c.namespace + "/" + name
	switch {
	case name == "" || c.namespace == "":
		return nil, apierrors.NewBadRequest("an object needs a name and a namespace")
	case st.objects[key] != nil:
		return nil, apierrors.NewAlreadyExists(c.resource(), name)
	case st.bytes >= maxStoreBytes:
		return nil, apierrors.NewTooManyRequestsError("the store is full")
	}
	meta["name"], meta["namespace"], meta["resourceVersion"] = name, c.namespace, strconv.FormatInt(st.version+1, 10)
	meta["uid"], meta["creationTimestamp"] = fmt.Sprintf("00000000-0000-4000-8000-%012x", st.version+1), "2026-01-01T00:00:00Z"
	doc["kind"] = "Widget"
	delete(doc, "apiVersion")
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encoding object: %w", err)
	}
	b[0] = ',' // the part after apiVersion
	o := &widget{namespace: c.namespace, name: name, rest: b}
	st.objects[key] = o
	st.bytes += len(b)
	st.changedLocked("ADDED", o)
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

// change is an event of a watch. Without a widget it has no content, and is for all watches.
type change struct {
	event  string
	widget *widget
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

// changedLocked counts a version and notifies the watchers of o's namespace, or all.
func (st *store) changedLocked(event string, o *widget) {
	st.version++
	for w := range st.watchers {
		if o != nil && w.namespace != "" && o.namespace != w.namespace {
			continue
		}
		select {
		case w.events <- change{event, o}:
		default:
			delete(st.watchers, w)
			close(w.events)
		}
	}
}
