package extension

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxObject is the largest body that is stored or echoed from a create: kube-apiserver's own limit
// is 3 MB.
const maxObject = 4 << 20

// widgets answers for [namespaces/<ns>/]widgets[/<name>[/<subresource>]].
func (s *Server) widgets(w http.ResponseWriter, r *http.Request, gv groupVersion, st *store, path []string) {
	namespace := ""
	if len(path) >= 2 && path[0] == "namespaces" {
		namespace, path = unescape(path[1]), path[2:]
	}
	if len(path) == 0 || path[0] != "widgets" || len(path) > 3 {
		writeStatus(w, http.StatusNotFound, "no such resource")
		return
	}
	c := call{gv: gv, store: st, namespace: namespace}
	if len(path) > 1 {
		c.name = unescape(path[1])
	}
	switch {
	case len(path) == 3:
		s.connect(w, r, path[2])
	case c.name == "" && r.Method == http.MethodGet && isWatch(r):
		s.watch(w, r, c)
	case c.name == "" && r.Method == http.MethodGet:
		c.list(w)
	case c.name == "" && r.Method == http.MethodPost:
		c.create(w, r)
	case c.name == "" && r.Method == http.MethodDelete:
		c.deleteAll(w)
	case c.name == "":
		writeStatus(w, http.StatusMethodNotAllowed, "not on a collection")
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		c.get(w)
	case r.Method == http.MethodPut:
		c.update(w, r)
	case r.Method == http.MethodDelete:
		c.delete(w)
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

func isWatch(r *http.Request) bool {
	v, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
	return v
}

// call is one request for objects.
type call struct {
	gv              groupVersion
	store           *store
	namespace, name string
}

func (c call) get(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	o := c.store.get(c.namespace, c.name)
	if o == nil {
		c.notFound(w)
		return
	}
	b := o.in(c.gv)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b)
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
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	_, _ = w.Write(b.Bytes())
}

func (c call) create(w http.ResponseWriter, r *http.Request) {
	doc, meta, ok := c.read(w, r)
	if !ok {
		return
	}
	if name, _ := meta["name"].(string); name != "" {
		c.name = name
	} else if prefix, _ := meta["generateName"].(string); prefix != "" {
		c.name = prefix + c.store.suffix()
	}
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
	switch {
	case errors.Is(err, errExists):
		writeStatus(w, http.StatusConflict, fmt.Sprintf("widgets.%s %q already exists", c.gv.group, c.name))
	case errors.Is(err, errMissing):
		c.notFound(w)
	case errors.Is(err, errFull):
		writeStatus(w, http.StatusTooManyRequests, "the store is full")
	case err != nil:
		writeStatus(w, http.StatusUnprocessableEntity, err.Error())
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(o.in(c.gv))
	}
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

func (c call) delete(w http.ResponseWriter) {
	if c.store.delete(c.namespace, c.name) == 0 {
		c.notFound(w)
		return
	}
	writeSuccess(w)
}

func (c call) deleteAll(w http.ResponseWriter) {
	c.store.delete(c.namespace, "")
	writeSuccess(w)
}

func (c call) notFound(w http.ResponseWriter) {
	writeJSON(w, http.StatusNotFound, "application/json", metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
		Message: fmt.Sprintf("widgets.%s %q not found", c.gv.group, c.name),
		Details: &metav1.StatusDetails{Name: c.name, Group: c.gv.group, Kind: "widgets"},
	})
}

func writeSuccess(w http.ResponseWriter) {
	writeJSON(w, http.StatusOK, "application/json", metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusOK,
	})
}
