package apiservices

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// next returns the next event of a watch.
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "end"
		}
		switch o := e.Object.(type) {
		case *apiregistrationv1.APIService:
			text := string(e.Type) + " " + o.Name
			if o.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
				text += " initial"
			}
			return text
		case *metav1.Status:
			return fmt.Sprintf("%s %s", e.Type, o.Reason)
		}
		return fmt.Sprintf("%s %T", e.Type, e.Object)
	case <-time.After(10 * time.Second):
		t.Fatal("no event")
		return ""
	}
}

func TestWatch(t *testing.T) {
	s, url := serve(t)
	put(s, object("v1.apps", map[string]string{"tier": "a"}), object("v1.b.io", nil))
	c := client(t, url, runtime.ContentTypeProtobuf)
	open := func(o metav1.ListOptions) watch.Interface {
		t.Helper()
		w := must.Get(c.Watch(t.Context(), o))(t)
		t.Cleanup(w.Stop)
		return w
	}
	list := must.Get(c.List(t.Context(), metav1.ListOptions{}))(t)
	all := open(metav1.ListOptions{})
	since, numbered := open(metav1.ListOptions{ResourceVersion: list.ResourceVersion}), open(metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	selected := open(metav1.ListOptions{ResourceVersion: list.ResourceVersion, LabelSelector: "tier=a"})
	named := open(metav1.ListOptions{FieldSelector: "metadata.name=v1.b.io"})
	stream := open(metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})

	expect := func(what string, w watch.Interface, want ...string) {
		t.Helper()
		for _, want := range want {
			check.Same(t, want, next(t, w), "%s", what)
		}
	}
	expect("all", all, "ADDED v1.apps", "ADDED v1.b.io")
	expect("named", named, "ADDED v1.b.io")
	expect("stream", stream, "ADDED v1.apps", "ADDED v1.b.io", "BOOKMARK  initial")

	s.Input.APIServices["v1.b.io"] = object("v1.b.io", map[string]string{"tier": "a"}) // now matches
	s.Input.APIServices["v1.c.io"] = object("v1.c.io", nil)
	s.Build()
	put(s, object("v1.apps", nil)) // no longer matches
	delete(s.Input.APIServices, "v1.b.io")
	s.Build()
	everything := []string{"MODIFIED v1.b.io", "ADDED v1.c.io", "MODIFIED v1.apps", "DELETED v1.b.io"}
	expect("all", all, everything...)
	expect("since", since, everything...)
	expect("stream", stream, everything...)
	expect("selected", selected, "ADDED v1.b.io", "DELETED v1.apps", "DELETED v1.b.io")
	expect("named", named, "MODIFIED v1.b.io", "DELETED v1.b.io")

	last := list.ResourceVersion
	for range everything { // revisions increase, also in the last state of a deleted object: clients resume from it
		e := <-numbered.ResultChan()
		o, ok := e.Object.(*apiregistrationv1.APIService)
		if !ok {
			t.Fatalf("event %v", e)
		}
		if order, err := resourceversion.CompareResourceVersion(last, o.ResourceVersion); err != nil || order >= 0 {
			t.Errorf("%s %s is of revision %s, after %s (%v)", e.Type, o.Name, o.ResourceVersion, last, err)
		}
		last = o.ResourceVersion
	}

	expect("old", open(metav1.ListOptions{ResourceVersion: "1"}), "ERROR Expired", "end")
	for rv, want := range map[string]func(error) bool{
		"18446744073709551615": apierrors.IsTimeout,
		"x":                    apierrors.IsBadRequest,
	} {
		if w, err := c.Watch(t.Context(), metav1.ListOptions{ResourceVersion: rv}); err == nil || !want(err) {
			t.Errorf("watch from %s: %v %v", rv, w, err)
		}
	}
}

// A watch over WebSocket, as browsers use it, works.
func TestWatchByWebSocket(t *testing.T) {
	s, url := serve(t)
	put(s, object("v1.a.io", nil))
	c, res := must.Get2(websocket.DefaultDialer.DialContext(t.Context(), strings.Replace(url, "http", "ws", 1)+root+"/v1/apiservices?watch=1", http.Header{"Origin": {url}}))(t)
	defer c.Close()
	defer res.Body.Close()
	if _, data, err := c.ReadMessage(); err != nil || !strings.Contains(string(data), `"type":"ADDED"`) || !strings.Contains(string(data), "v1.a.io") {
		t.Errorf("%v %s", err, data)
	}
}

func TestWatchAsTable(t *testing.T) {
	s, url := serve(t)
	put(s, object("v1.apps", nil))
	_, body := get(t, url+root+"/v1/apiservices?watch=1&timeoutSeconds=1", "application/json;as=Table;v=v1;g=meta.k8s.io")
	var e struct {
		Type   string
		Object metav1.Table
	}
	if err := json.NewDecoder(strings.NewReader(body)).Decode(&e); err != nil || e.Type != "ADDED" || len(e.Object.Rows) != 1 || e.Object.Rows[0].Cells[0] != "v1.apps" {
		t.Errorf("first event %+v: %v", e, err)
	}
}

// A watcher that is too far behind must list again, and the history is bounded.
func TestSlowWatcher(t *testing.T) {
	s, sc := newStore(), scene.New(t)
	var last []*registry.Entry
	sc.Built = func() {
		s.follow(latest.Diff(last, sc.Table().Entries()))
		last = sc.Table().Entries()
	}
	write := func(n int) {
		for i := range n {
			sc.Input.APIServices[fmt.Sprintf("v1.g%d.io", i)] = object(fmt.Sprintf("v1.g%d.io", i), map[string]string{"n": fmt.Sprint(time.Now().UnixNano())})
		}
		sc.Build()
	}
	write(2)
	at := fmt.Sprint(s.state().revision)
	write(history/2 + 1)
	write(history/2 + 1)
	w := must.Get(s.Watch(t.Context(), "", storage.ListOptions{ResourceVersion: at}))(t)
	if first, second := next(t, w), next(t, w); first != "ERROR Expired" || second != "end" {
		t.Errorf("events %s and %s", first, second)
	}
	check.Same(t, history, len(s.state().events), "events in the history")
}
