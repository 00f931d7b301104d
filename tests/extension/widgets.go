package extension

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxObject limits a stored body; kube-apiserver's own limit is 3 MB.
const maxObject = 4 << 20

// widgets serves [namespaces/<ns>/]widgets[/<name>[/<subresource>]].
func (s *Server) widgets(w http.ResponseWriter, r *http.Request, gv groupVersion, st *store, path []string) {
	namespace := ""
	if len(path) >= 2 && path[0] == "namespaces" {
		namespace, path = unescape(path[1]), path[2:]
	}
	if len(path) == 0 || path[0] != "widgets" || len(path) > 3 {
		writeStatus(w, http.StatusNotFound, "no such resource")
		return
	}
	watches, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
	c := call{gv: gv, store: st, namespace: namespace}
	if len(path) > 1 {
		c.name = unescape(path[1])
	}
	switch {
	case len(path) == 3:
		s.connect(w, r, path[2])
	case c.name == "" && r.Method == http.MethodGet && watches:
		s.watch(w, r, c)
	case c.name == "" && r.Method == http.MethodGet:
		c.list(w)
	case c.name == "" && r.Method == http.MethodPost:
		c.create(w, r)
	case r.Method == http.MethodDelete:
		c.delete(w)
	case c.name == "":
		writeStatus(w, http.StatusMethodNotAllowed, "not on a collection")
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		c.get(w)
	case r.Method == http.MethodPut:
		c.update(w, r)
	default:
		writeStatus(w, http.StatusMethodNotAllowed, "not on an object")
	}
}

func unescape(segment string) string {
	if s, err := url.PathUnescape(segment); err == nil {
		return s
	}
	return segment
}

// call is one request for objects.
type call struct {
	gv              groupVersion
	store           *store
	namespace, name string
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

// writeBytes sends JSON.
func writeBytes(w http.ResponseWriter, code int, b []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(code)
	_, _ = w.Write(b)
}

func (c call) create(w http.ResponseWriter, r *http.Request) {
	doc, meta, ok := c.read(w, r)
	if !ok {
		return
	}
	c.name, _ = meta["name"].(string)
	o, err := c.store.put(c, doc, meta, true)
	c.answer(w, o, err, http.StatusCreated)
}

func (c call) update(w http.ResponseWriter, r *http.Request) {
	doc, meta, ok := c.read(w, r)
	if !ok {
		return
	}
	o, err := c.store.put(c, doc, meta, false)
	c.answer(w, o, err, http.StatusOK)
}

func (c call) answer(w http.ResponseWriter, o *widget, err error, code int) {
	if err != nil {
		writeError(w, err)
		return
	}
	writeBytes(w, code, o.in(c.gv))
}

// read decodes an object from the body.
func (c call) read(w http.ResponseWriter, r *http.Request) (doc, meta map[string]any, ok bool) {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxObject+1))
	if err == nil && len(b) > maxObject {
		writeStatus(w, http.StatusRequestEntityTooLarge, "the object is too large")
		return nil, nil, false
	}
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		writeStatus(w, http.StatusBadRequest, "the body is not an object: "+err.Error())
		return nil, nil, false
	}
	meta, _ = doc["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	return doc, meta, true
}

// delete deletes one widget, or without a name all of the namespace.
func (c call) delete(w http.ResponseWriter) {
	if c.store.delete(c.namespace, c.name) == 0 && c.name != "" {
		writeError(w, apierrors.NewNotFound(c.resource(), c.name))
		return
	}
	writeJSON(w, http.StatusOK, "application/json", metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusOK,
	})
}
