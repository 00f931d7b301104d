package apiservices

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
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

// events takes the events from a watch.
func events(t testing.TB, from *bytes.Buffer) string {
	t.Helper()
	var b strings.Builder
	for d := json.NewDecoder(from); d.More(); {
		var e struct {
			Type   string
			Object struct {
				metav1.PartialObjectMetadata
				Reason string
			}
		}
		must.Do(t, d.Decode(&e))
		fmt.Fprintf(&b, "  %s %s%s %s %v\n", e.Type, e.Object.Name, e.Object.Reason, e.Object.ResourceVersion, e.Object.Annotations)
	}
	return b.String()
}

// A watch over WebSocket, as browsers use it, works.
func TestWatchByWebSocket(t *testing.T) {
	s, url := serve(t)
	put(s, object("v1.a.io", nil))
	c, res := must.Get2(websocket.DefaultDialer.DialContext(t.Context(), strings.Replace(url, "http", "ws", 1)+root+"/v1/apiservices?watch=1", http.Header{"Origin": {url}}))(t)
	defer c.Close()
	defer res.Body.Close()
	_, data := must.Get2(c.ReadMessage())(t)
	check.Has(t, string(data), `"type":"ADDED"`, "v1.a.io")
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
			sc.Input.APIServices[fmt.Sprintf("v1.g%d.io", i)] = object(fmt.Sprintf("v1.g%d.io", i), map[string]string{"n": time.Now().String()})
		}
		sc.Build()
	}
	write(2)
	at := fmt.Sprint(s.current.Load().revision)
	write(history/2 + 1)
	write(history/2 + 1)
	w := must.Get(s.Watch(t.Context(), "", storage.ListOptions{ResourceVersion: at}))(t)
	check.Same(t, [2]string{"ERROR Expired", "end"}, [2]string{next(t, w), next(t, w)}, "events")
	check.Same(t, history, len(s.current.Load().events), "events in the history")
}
