package extension

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const maxObject = 4 << 20 // limits a body; kube-apiserver's own limit is 3 MB

// object is a piece of a JSON document.
type object = map[string]any

// store has the widgets of one group, in the namespace default, until they are deleted. What is
// created is answered, but not kept.
type store struct {
	mu      sync.Mutex    // guards the fields below
	widgets []object      // by name; each is immutable
	emitted chan struct{} // closed by Emit
}

func newStore(seeds int) *store {
	st := &store{emitted: make(chan struct{})}
	for i := range seeds {
		// 760 bytes of payload and Kubernetes' fields make an object of about 1 KB.
		o := &unstructured.Unstructured{Object: object{"spec": object{"payload": string(filler(760))}}}
		o.SetName(fmt.Sprintf("widget-%03d", i))
		st.widgets = append(st.widgets, made(o, "default", i+1))
	}
	return st
}

// made adds what a server adds to a new object.
func made(o *unstructured.Unstructured, namespace string, version int) object {
	o.SetKind("Widget")
	o.SetNamespace(namespace)
	o.SetResourceVersion(strconv.Itoa(version))
	o.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", version)))
	o.SetCreationTimestamp(metav1.Now())
	return o.Object
}

// list returns the widgets of a namespace, or of all if it is empty, and when Emit is called.
func (st *store) list(namespace string) ([]object, <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if namespace != "" && namespace != "default" {
		return nil, st.emitted
	}
	return slices.Clone(st.widgets), st.emitted
}

func named(name string) func(object) bool {
	return func(o object) bool { return (&unstructured.Unstructured{Object: o}).GetName() == name }
}

// Emit sends an event without content to every watch of the first served group.
func (s *Server) Emit() {
	st := s.stores[s.versions[0].Group]
	st.mu.Lock()
	defer st.mu.Unlock()
	close(st.emitted)
	st.emitted = make(chan struct{})
}

// call is one request for objects.
type call struct {
	gv              schema.GroupVersion
	store           *store
	namespace, name string
}

// serve serves [namespaces/<ns>/]widgets[/<name>[/<subresource>]].
func (c call) serve(w http.ResponseWriter, r *http.Request, path []string) {
	if len(path) >= 2 && path[0] == "namespaces" {
		c.namespace, path = path[1], path[2:]
	}
	if len(path) == 0 || path[0] != "widgets" || len(path) > 3 {
		writeStatus(w, http.StatusNotFound, "no such resource")
		return
	}
	if len(path) > 1 {
		c.name = path[1]
	}
	watches, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
	switch {
	case len(path) == 3:
		connect(w, r, path[2])
	case c.name != "":
		c.one(w, r)
	case r.Method == http.MethodGet && watches:
		c.watch(w, r)
	case r.Method == http.MethodGet:
		c.list(w)
	case r.Method == http.MethodPost:
		c.create(w, r)
	default:
		writeStatus(w, http.StatusMethodNotAllowed, "not here")
	}
}

// in returns a widget as an object of the requested version.
func (c call) in(o object) object {
	seen := maps.Clone(o)
	seen["apiVersion"] = c.gv.String()
	return seen
}

// one gets or deletes a widget.
func (c call) one(w http.ResponseWriter, r *http.Request) {
	all, _ := c.store.list(c.namespace)
	i := slices.IndexFunc(all, named(c.name))
	switch {
	case i < 0:
		writeError(w, apierrors.NewNotFound(schema.GroupResource{Group: c.gv.Group, Resource: "widgets"}, c.name[:min(len(c.name), longestName)]))
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		writeJSON(w, http.StatusOK, c.in(all[i]))
	case r.Method == http.MethodDelete:
		c.store.mu.Lock()
		defer c.store.mu.Unlock()
		c.store.widgets = slices.DeleteFunc(slices.Clone(c.store.widgets), named(c.name))
		writeJSON(w, http.StatusOK, metav1.Status{TypeMeta: statusType(), Status: metav1.StatusSuccess, Code: http.StatusOK})
	default:
		writeStatus(w, http.StatusMethodNotAllowed, "not here")
	}
}

func (c call) list(w http.ResponseWriter) {
	items := []object{}
	all, _ := c.store.list(c.namespace)
	for _, o := range all {
		items = append(items, c.in(o))
	}
	writeJSON(w, http.StatusOK, object{"kind": "WidgetList", "apiVersion": c.gv.String(), "metadata": object{"resourceVersion": "1"}, "items": items})
}

func (c call) create(w http.ResponseWriter, r *http.Request) {
	o := &unstructured.Unstructured{}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxObject))
	if err == nil {
		err = json.Unmarshal(b, &o.Object)
	}
	if err != nil || o.GetName()+o.GetGenerateName() == "" || c.namespace == "" {
		writeError(w, apierrors.NewBadRequest(fmt.Sprint("an object needs a name and a namespace: ", err)))
		return
	}
	o.SetName(cmp.Or(o.GetName(), o.GetGenerateName()+"new"))
	writeJSON(w, http.StatusCreated, c.in(made(o, c.namespace, 0)))
}

// watch streams events until the client, timeoutSeconds or the server ends it. Without a
// resourceVersion, or with 0, it starts with the existing objects.
func (c call) watch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	var end <-chan time.Time // nil: never
	if seconds, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil && seconds > 0 {
		end = time.After(time.Duration(seconds) * time.Second)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flusher, out := http.NewResponseController(w), json.NewEncoder(w)
	existing, emitted := c.store.list(c.namespace)
	if version := query.Get("resourceVersion"); version == "" || version == "0" {
		for _, o := range existing {
			_ = out.Encode(object{"type": watch.Added, "object": c.in(o)}) // Flush fails, too
		}
	}
	for flusher.Flush() == nil {
		select {
		case <-emitted:
			_ = out.Encode(object{"type": watch.Modified, "object": object{}})
			_, emitted = c.store.list(c.namespace)
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// connect answers a connect subresource: it echoes the body, or what follows an upgrade.
func connect(w http.ResponseWriter, r *http.Request, subresource string) {
	if !slices.Contains(connectSubresources(), subresource) {
		writeStatus(w, http.StatusNotFound, "no such subresource")
		return
	}
	if protocol := r.Header.Get("Upgrade"); protocol != "" {
		upgrade(w, protocol)
		return
	}
	echo(w, r)
}

// upgrade switches to any protocol, and echoes bytes until the client ends the connection.
func upgrade(w http.ResponseWriter, protocol string) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // over HTTP/2, which has no upgrades
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
	_, _ = io.Copy(conn, rw)
}

// echo streams the body and its trailers back.
func echo(w http.ResponseWriter, r *http.Request) {
	controller := http.NewResponseController(w)
	_ = controller.EnableFullDuplex() // HTTP/1.1 reads the whole body first by default; HTTP/2 does not support this, or need it
	w.Header().Set("Content-Type", "application/octet-stream")
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = controller.Flush()
		}
		if err != nil {
			break
		}
	}
	for name, values := range r.Trailer {
		for _, v := range values {
			w.Header().Add(http.TrailerPrefix+name, v)
		}
	}
}

// longestName is that of an object: an answer is not to be four times as long as a path, which
// would count for the head.
const longestName = 253
