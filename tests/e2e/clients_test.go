//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// testClients does what programs do: long watches, large bodies, other encodings.
func testClients(t *testing.T, w *world) {
	for _, k := range kinds() {
		t.Run(k.name+": a watch lives longer than any request may", func(t *testing.T) { t.Parallel(); longWatch(t, w, k) })
		t.Run(k.name+": a body of 3 MB goes in and comes back", func(t *testing.T) { t.Parallel(); bigBody(t, w, k) })
		t.Run(k.name+": protobuf", func(t *testing.T) { t.Parallel(); protobuf(t, w, k) })
	}
}

// request sends a raw request as the administrator.
func (w *world) request(t *testing.T, method, path string, header http.Header, body string) reply {
	t.Helper()
	transport := must.Get(rest.TransportFor(w.server.RESTConfig(w.Admin())))(t)
	req := must.Get(http.NewRequestWithContext(t.Context(), method, w.server.URL+path, strings.NewReader(body)))(t)
	maps.Copy(req.Header, header)
	return answer(t, transport, req)
}

// url returns the path of the collection in a namespace.
func (k kind) url(ns string) string {
	root := "/api/" + k.gvr.Version
	if k.gvr.Group != "" {
		root = "/apis/" + k.gvr.Group + "/" + k.gvr.Version
	}
	return root + "/namespaces/" + ns + "/" + k.gvr.Resource
}

func (w *world) create(t *testing.T, k kind, ns, name, value string) {
	t.Helper()
	if _, err := w.dynamic.Resource(k.gvr).Namespace(ns).Create(t.Context(), k.object(name, value), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating %s: %v", name, err)
	}
}

// longWatch outlives 60 s, the limit of an ordinary request in kube-apiserver and Fairlead.
func longWatch(t *testing.T, w *world, k kind) {
	const idle = 65 * time.Second
	ns := w.namespace(t)
	ctx, cancel := context.WithTimeout(t.Context(), idle+30*time.Second)
	defer cancel()
	events := must.Get(w.dynamic.Resource(k.gvr).Namespace(ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=late"}))(t)
	defer events.Stop()
	select {
	case e, open := <-events.ResultChan():
		t.Fatalf("%v after less than %s, want silence (open: %t)", e, idle, open)
	case <-time.After(idle):
	}
	w.create(t, k, ns, "late", "worth waiting for")
	e, open := <-events.ResultChan()
	if !open || e.Type != watch.Added {
		t.Errorf("got %v (open: %t), want the new object", e, open)
	}
}

// bigBody uses a dry run, which reads, decodes, admits and returns the whole body. etcd would not
// store it.
func bigBody(t *testing.T, w *world, k kind) {
	ns := w.namespace(t)
	value := strings.Repeat("0123456789abcdef", 1000) // 16 kB, because a ConfigMap holds less than 1 MiB in all
	padding := strings.Repeat(" ", 3_000_000-len(value)-1000)
	if k.gvr.Group != "" {
		value, padding = strings.Repeat("0123456789abcdef", 3_000_000/16-100), ""
	}
	body := k.manifest("big", value) + padding
	r := w.request(t, http.MethodPost, k.url(ns)+"?dryRun=All", http.Header{"Content-Type": {"application/json"}}, body)
	if r.status != http.StatusCreated {
		t.Fatalf("%d: %.500s", r.status, r.body)
	}
	o := k.object("", "")
	must.Do(t, o.UnmarshalJSON(r.body))
	if k.value(o) != value {
		t.Errorf("%d bytes came back, %d went in", len(k.value(o)), len(value))
	}
}

// protobuf checks the encoding that controllers use.
func protobuf(t *testing.T, w *world, k kind) {
	ns := w.namespace(t)
	w.create(t, k, ns, "encoded", "x")
	r := w.request(t, http.MethodGet, k.url(ns)+"/encoded", http.Header{"Accept": {"application/vnd.kubernetes.protobuf,application/json"}}, "")
	if r.header.Get("Content-Type") != "application/vnd.kubernetes.protobuf" || !bytes.HasPrefix(r.body, []byte("k8s\x00")) {
		t.Errorf("%s: %d %s: %.200q", k.name, r.status, r.header.Get("Content-Type"), r.body)
	}
	if k.gvr.Group != "" {
		return // its client knows no protobuf
	}
	rc := w.server.RESTConfig(w.Admin())
	rc.ContentType, rc.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"
	maps := must.Get(kubernetes.NewForConfig(rc))(t).CoreV1().ConfigMaps(ns)
	want := map[string]string{"k": "v"}
	made := must.Get(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "binary"}, Data: want}, metav1.CreateOptions{}))(t)
	if fmt.Sprint(made.Data) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", made.Data, want)
	}
	events := must.Get(maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion}))(t)
	defer events.Stop()
	must.Do(t, maps.Delete(t.Context(), "binary", metav1.DeleteOptions{}))
	for e := range events.ResultChan() {
		if o, ok := e.Object.(*corev1.ConfigMap); ok && o.Name == "binary" && e.Type == watch.Deleted {
			return
		}
	}
	t.Error("the watch ended without the deletion")
}
