//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

func longAgo() time.Time { return time.Now().Add(-30 * time.Minute) }

// testClients does what programs do: long watches, large bodies, lists in chunks, other encodings.
func testClients(t *testing.T, w *world) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range []struct {
				name string
				run  func(t *testing.T, w *world, k kind)
			}{
				{"a watch lives longer than any request may", longWatch},
				{"a watch ends when it asked to", shortWatch},
				{"lists come in chunks", chunks},
				{"an old resourceVersion is gone", gone},
				{"a body of 3 MB goes in and comes back", bigBody},
				{"a body over the limit is refused", tooBig},
				{"gzip", compressed},
				{"metadata only", metadataOnly},
				{"a DELETE of a collection", deleteCollection},
			} {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(t, w, k)
				})
			}
		})
	}
	t.Run("protobuf", func(t *testing.T) { protobuf(t, w) })
}

// reply is a complete response.
type reply struct {
	status int
	proto  string
	header http.Header
	body   []byte
}

// request sends a raw request as the administrator.
func (w *world) request(t *testing.T, method, path string, header http.Header, body []byte) reply {
	t.Helper()
	transport := must.Get(rest.TransportFor(w.server.RESTConfig(w.Admin())))(t)
	req := must.Get(http.NewRequestWithContext(t.Context(), method, w.server.URL+path, bytes.NewReader(body)))(t)
	maps.Copy(req.Header, header)
	return answer(t, transport, req)
}

// answer sends a request and reads the complete response.
func answer(t *testing.T, transport http.RoundTripper, req *http.Request) reply {
	t.Helper()
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	defer res.Body.Close()
	return reply{res.StatusCode, res.Proto, res.Header, must.Get(io.ReadAll(res.Body))(t)}
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

func shortWatch(t *testing.T, w *world, k kind) {
	ns, seconds := w.namespace(t), int64(2)
	begun := time.Now()
	events, err := w.dynamic.Resource(k.gvr).Namespace(ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=none", TimeoutSeconds: &seconds})
	must.Do(t, err)
	for e := range events.ResultChan() {
		t.Errorf("got %v, want nothing", e)
	}
	if took := time.Since(begun); took < time.Second || took > 20*time.Second {
		t.Errorf("ended after %s, want 2 s", took)
	}
}

func chunks(t *testing.T, w *world, k kind) {
	const total, limit = 23, 5
	ns := w.namespace(t)
	for i := range total {
		w.create(t, k, ns, fmt.Sprintf("item-%02d", i), "x")
	}
	seen, pages := map[string]bool{}, 0
	for next := ""; pages == 0 || next != ""; pages++ {
		list := must.Get(w.dynamic.Resource(k.gvr).Namespace(ns).List(t.Context(), metav1.ListOptions{Limit: limit, Continue: next}))(t)
		if len(list.Items) > limit {
			t.Errorf("a page of %d objects, the limit is %d", len(list.Items), limit)
		}
		for _, o := range list.Items {
			seen[o.GetName()] = true
		}
		next = list.GetContinue()
	}
	delete(seen, "kube-root-ca.crt")
	if len(seen) != total || pages < total/limit {
		t.Errorf("%d objects on %d pages, want %d on at least %d", len(seen), pages, total, total/limit)
	}
}

// gone lists at a revision until it is compacted. Informers need this error: it makes them list
// again.
func gone(t *testing.T, w *world, k kind) {
	ns := w.namespace(t)
	o, err := w.dynamic.Resource(k.gvr).Namespace(ns).Create(t.Context(), k.object("old", "x"), metav1.CreateOptions{})
	must.Do(t, err)
	at := metav1.ListOptions{ResourceVersion: o.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	suite.Eventually(t, time.Minute, "the revision is forgotten", func() (bool, string) {
		_, err = w.dynamic.Resource(k.gvr).Namespace(ns).List(t.Context(), at)
		return err != nil, "it is still known"
	})
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) || status.Status().Code != http.StatusGone || !apierrors.IsResourceExpired(err) {
		t.Errorf("list: %v, want 410 with reason Expired", err)
	}
}

// limit is the maximum request body of kube-apiserver and servers built like it: 3 MiB.
const limit = 3 << 20

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
	r := w.request(t, http.MethodPost, k.url(ns)+"?dryRun=All", http.Header{"Content-Type": {"application/json"}}, []byte(body))
	if r.status != http.StatusCreated {
		t.Fatalf("%d: %.500s", r.status, r.body)
	}
	o := k.object("", "")
	must.Do(t, o.UnmarshalJSON(r.body))
	if k.value(o) != value {
		t.Errorf("%d bytes came back, %d went in", len(k.value(o)), len(value))
	}
}

func tooBig(t *testing.T, w *world, k kind) {
	body := k.manifest("huge", strings.Repeat("x", limit+1000))
	r := w.request(t, http.MethodPost, k.url(w.namespace(t)), http.Header{"Content-Type": {"application/json"}}, []byte(body))
	var status metav1.Status
	if err := json.Unmarshal(r.body, &status); err != nil {
		t.Fatalf("not a Status: %v: %.500s", err, r.body)
	}
	if r.status != http.StatusRequestEntityTooLarge || status.Reason != metav1.StatusReasonRequestEntityTooLarge {
		t.Errorf("%d, reason %s, want 413 and RequestEntityTooLarge", r.status, status.Reason)
	}
}

// compressed checks that a proxy preserves compression: kube-apiserver compresses answers of at
// least 128 KiB for clients that accept it.
func compressed(t *testing.T, w *world, k kind) {
	ns := w.namespace(t)
	for i := range 3 {
		w.create(t, k, ns, fmt.Sprintf("heavy-%d", i), strings.Repeat("lead ", 20_000))
	}
	r := w.request(t, http.MethodGet, k.url(ns), http.Header{"Accept-Encoding": {"gzip"}}, nil)
	if r.header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("Content-Encoding %q, want gzip", r.header.Get("Content-Encoding"))
	}
	z := must.Get(gzip.NewReader(bytes.NewReader(r.body)))(t)
	var unpacked, plain map[string]any
	must.Do(t, json.NewDecoder(z).Decode(&unpacked))
	r = w.request(t, http.MethodGet, k.url(ns), http.Header{"Accept-Encoding": {"identity"}}, nil)
	if enc := r.header.Get("Content-Encoding"); enc != "" {
		t.Errorf("Content-Encoding %q for a client that accepts none", enc)
	}
	must.Do(t, json.Unmarshal(r.body, &plain))
	for _, doc := range []map[string]any{unpacked, plain} {
		if items, _ := doc["items"].([]any); len(items) < 3 {
			t.Errorf("%d items, want 3", len(items))
		}
	}
}

func metadataOnly(t *testing.T, w *world, k kind) {
	ns := w.namespace(t)
	w.create(t, k, ns, "known", "secret")
	r := w.request(t, http.MethodGet, k.url(ns)+"/known", http.Header{"Accept": {"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}}, nil)
	var o metav1.PartialObjectMetadata
	must.Do(t, json.Unmarshal(r.body, &o))
	if o.Kind != "PartialObjectMetadata" || o.Name != "known" || bytes.Contains(r.body, []byte("secret")) {
		t.Errorf("got %.500s, want only the metadata", r.body)
	}
}

func deleteCollection(t *testing.T, w *world, k kind) {
	ns := w.namespace(t)
	for _, name := range []string{"keep", "drop-1", "drop-2"} {
		o := k.object(name, "x")
		o.SetLabels(map[string]string{"drop": fmt.Sprint(name != "keep")})
		must.Get(w.dynamic.Resource(k.gvr).Namespace(ns).Create(t.Context(), o, metav1.CreateOptions{}))(t)
	}
	must.Do(t, w.dynamic.Resource(k.gvr).Namespace(ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "drop=true"}))
	list := must.Get(w.dynamic.Resource(k.gvr).Namespace(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "drop"}))(t)
	if len(list.Items) != 1 || list.Items[0].GetName() != "keep" {
		t.Errorf("%d objects left, want only keep", len(list.Items))
	}
}

// protobuf checks the encoding that controllers use.
func protobuf(t *testing.T, w *world) {
	ns := w.namespace(t)
	rc := w.server.RESTConfig(w.Admin())
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	rc.AcceptContentTypes = rc.ContentType
	client := must.Get(kubernetes.NewForConfig(rc))(t)
	want := map[string]string{"k": "v"}
	if _, err := client.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "binary"}, Data: want}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := must.Get(client.CoreV1().ConfigMaps(ns).Get(t.Context(), "binary", metav1.GetOptions{}))(t)
	if fmt.Sprint(got.Data) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got.Data, want)
	}
	events := must.Get(client.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{ResourceVersion: got.ResourceVersion}))(t)
	defer events.Stop()
	must.Do(t, client.CoreV1().ConfigMaps(ns).Delete(t.Context(), "binary", metav1.DeleteOptions{}))
	for e := range events.ResultChan() {
		if o, ok := e.Object.(*corev1.ConfigMap); ok && o.Name == "binary" && e.Type == watch.Deleted {
			break
		}
	}
	for _, k := range kinds() {
		w.create(t, k, ns, "encoded", "x")
		r := w.request(t, http.MethodGet, k.url(ns)+"/encoded", http.Header{"Accept": {"application/vnd.kubernetes.protobuf,application/json"}}, nil)
		if r.header.Get("Content-Type") != "application/vnd.kubernetes.protobuf" || !bytes.HasPrefix(r.body, []byte("k8s\x00")) {
			t.Errorf("%s: %d %s: %.200q", k.name, r.status, r.header.Get("Content-Type"), r.body)
		}
	}
}
