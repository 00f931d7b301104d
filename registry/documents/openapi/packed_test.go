package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// weighing is a client that looks how much memory is in use while a response is written to it.
type weighing struct {
	*httptest.ResponseRecorder
	heap float64
}

func (w *weighing) Write(b []byte) (int, error) {
	if w.heap == 0 {
		w.heap = scene.Heap()
	}
	return w.ResponseRecorder.Write(b)
}

// A client that does not read its response must not keep a document in memory: it can have hundreds of requests.
func TestUnreadDocument(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 8<<16)
	p := pack([]byte(body))
	for _, header := range []http.Header{{}, {"Range": {"bytes=5-5,0-0"}}} {
		w := &weighing{ResponseRecorder: httptest.NewRecorder()}
		w.Body.Grow(len(body))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi/v2", nil)
		r.Header = header
		before := scene.Heap()
		p.serve(w, r, typeJSON, p.hash)
		if kept := w.heap - before; kept > 1<<20 {
			t.Errorf("%v: %.1f MB are in use for a document of %d MB", header, kept/(1<<20), len(body)>>20)
		}
		check.Same(t, http.StatusOK, w.Code, "status")
		check.Same(t, "8388608", w.Header().Get("Content-Length"), "length")
		if w.Body.String() != body {
			t.Errorf("%v: the document arrived as %d other bytes", header, w.Body.Len())
		}
	}
}

// The protobuf form of a v3 document takes the place in which v2 documents are decoded: many users
// may ask for those of many backends.
func TestProtobufInTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		d := s.o.newDocument(schema.GroupVersion{}, nil, []byte(`{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{}}`))
		release := must.Get(s.o.question(nil, &state{}).begin(t.Context()))(t)
		done := make(chan error, 1)
		go func() {
			_, err := d.proto()
			done <- err
		}()
		synctest.Wait()
		check.Same(t, 0, len(done), "made while a document is decoded")
		release()
		must.Do(t, <-done)
		check.Same(t, 0, len(s.o.heavy), "places taken afterwards")
	})
}

// A backend whose document is costly rests for four times as long, however often it recovers.
func TestCostlyDocumentsRest(t *testing.T) {
	s := newStage(t)
	s.Claim("a.example.com/v1", "a", 100, 10)
	doc := specOf(define("a.example.com/v1", "as"))
	all := make([]object, 5000)
	for i := range all {
		all[i] = object{"type": "object"}
	}
	doc["definitions"].(object)["def.a.example.com.v1"].(object)["allOf"] = all
	s.Set("a", only("/openapi/v2", saying(http.StatusOK, string(must.Get(json.Marshal(doc))(t))), serving()))
	next, _, err := s.o.ask(t.Context(), &state{}, s.Table().Entries())
	must.Do(t, err)
	if rest := next.rested.Sub(next.confirmed); rest < time.Millisecond { // it took some 50
		t.Errorf("after 5,000 objects it rests for %s", rest)
	}
	inBubble(t, func(t *testing.T, s *stage) {
		s.host("a", define("a.example.com/v1", "as"))
		var asking sync.WaitGroup
		asking.Go(func() {
			_, _, _ = s.o.ask(t.Context(), &state{rested: time.Now().Add(10 * time.Second)}, s.Table().Entries())
		})
		s.Pass(9 * time.Second)
		check.Same(t, 0, len(s.Questions("a")), "questions before its time")
		asking.Wait()
		check.Same(t, 3, len(s.Questions("a")), "questions then")

		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, _, err := s.o.ask(gone, &state{rested: time.Now().Add(time.Hour)}, s.Table().Entries()); !errors.Is(err, context.Canceled) {
			t.Errorf("a backend that has left: %v", err)
		}
	})
}
