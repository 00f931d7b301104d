package extension

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxObject limits a stored body; kube-apiserver's own limit is 3 MB.
const maxObject = 4 << 20

// call is one request for objects.
type call struct {
	gv              groupVersion
	store           *store
	namespace, name string
}

// widgets serves [namespaces/<ns>/]widgets[/<name>[/<subresource>]].
func (s *Server) widgets(w http.ResponseWriter, r *http.Request, c call, path []string) {
	if len(path) >= 2 && path[0] == "namespaces" {
		c.namespace, path = unescape(path[1]), path[2:]
	}
	if len(path) == 0 || path[0] != "widgets" || len(path) > 3 {
		writeStatus(w, http.StatusNotFound, "no such resource")
		return
	}
	watches, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
	if len(path) > 1 {
		c.name = unescape(path[1])
	}
	switch {
	case len(path) == 3:
		connect(w, r, path[2])
	case r.Method == http.MethodDelete:
		c.delete(w)
	case c.name == "" && r.Method == http.MethodGet && watches:
		s.watch(w, r, c)
	case c.name == "" && r.Method == http.MethodGet:
		c.list(w)
	case c.name == "" && r.Method == http.MethodPost:
		c.create(w, r)
	case c.name != "" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		c.get(w)
	default:
		writeStatus(w, http.StatusMethodNotAllowed, "not here")
	}
}

func unescape(segment string) string {
	if s, err := url.PathUnescape(segment); err == nil {
		return s
	}
	return segment
}

func (c call) resource() schema.GroupResource {
	return schema.GroupResource{Group: c.gv.group, Resource: "widgets"}
}

func (c call) get(w http.ResponseWriter) {
	if o := c.store.get(c.namespace, c.name); o != nil {
		writeBytes(w, http.StatusOK, o.in(c.gv))
		return
	}
	writeError(w, apierrors.NewNotFound(c.resource(), c.name))
}

func (c call) list(w http.ResponseWriter) {
	items, version := c.store.list(c.namespace)
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"kind":"WidgetList","apiVersion":%q,"metadata":{"resourceVersion":"%d"},"items":[`, c.gv, version)
	for i, o := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(o.in(c.gv))
	}
	b.WriteString("]}")
	writeBytes(w, http.StatusOK, b.Bytes())
}

func (c call) create(w http.ResponseWriter, r *http.Request) {
	var doc object
	b, err := io.ReadAll(io.LimitReader(r.Body, maxObject+1))
	if err == nil && len(b) > maxObject {
		writeStatus(w, http.StatusRequestEntityTooLarge, "the object is too large")
		return
	}
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	var o *widget
	if err == nil {
		o, err = c.store.create(c, doc)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeBytes(w, http.StatusCreated, o.in(c.gv))
}

// delete deletes one widget, or without a name all of the namespace.
func (c call) delete(w http.ResponseWriter) {
	if c.store.delete(c.namespace, c.name) == 0 && c.name != "" {
		writeError(w, apierrors.NewNotFound(c.resource(), c.name))
		return
	}
	writeJSON(w, http.StatusOK, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusOK,
	})
}

// Emit sends an event without content to every watch of the first served group, in addition to
// those for changes.
func (s *Server) Emit() {
	st := s.stores[s.versions[0].group]
	st.mu.Lock()
	defer st.mu.Unlock()
	st.changedLocked("MODIFIED", nil)
}

// watch streams events until the client, timeoutSeconds or the server ends it. Without a
// resourceVersion, or with 0, it starts with the existing objects.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, c call) {
	query := r.URL.Query()
	var end <-chan time.Time // nil: never
	if seconds, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil && seconds > 0 {
		end = time.After(time.Duration(seconds) * time.Second)
	}
	events, existing := c.store.watch(c.namespace)
	if events == nil {
		writeStatus(w, http.StatusTooManyRequests, "too many watches")
		return
	}
	defer c.store.unwatch(events)
	s.stats.watchers.Add(1)
	defer s.stats.watchers.Add(-1)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if v := query.Get("resourceVersion"); v == "" || v == "0" {
		for _, o := range existing {
			if writeEvent(w, c.gv, change{"ADDED", o}) != nil {
				return
			}
		}
	}
	flusher := http.NewResponseController(w)
	for flusher.Flush() == nil {
		select {
		case e, ok := <-events.events:
			if !ok || writeEvent(w, c.gv, e) != nil {
				return
			}
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func writeEvent(w io.Writer, gv groupVersion, e change) error {
	b := []byte("{}")
	if e.widget != nil {
		b = e.widget.in(gv)
	}
	_, err := fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", e.event, b)
	return err
}
