package extension_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestControl(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	web := httptest.NewServer(s.Control())
	defer web.Close()
	far := &extension.Client{URL: web.URL}
	want := []extension.Fault{
		{Kind: extension.Slow, Path: "/apis", Delay: 1500 * time.Millisecond, Factor: 2},
		{Kind: extension.Status, Method: "GET", Code: 418, Every: 1, Times: 5},
	}
	must.Do(t, far.Set(t.Context(), want...))
	if diff := cmp.Diff(want, s.Faults()); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if err := far.Set(t.Context(), extension.Fault{Kind: "nonsense"}); err == nil {
		t.Error("an unknown kind was taken")
	}
	c := client(t, s, "HTTP/2.0", nil)
	if res, _ := ask(t, c, "GET", s.URL()+"/healthz", nil, "X-Remote-User", "jane"); res.StatusCode != 418 {
		t.Errorf("status %d", res.StatusCode)
	}
	if err := far.Set(t.Context()); err != nil || len(s.Faults()) != 0 {
		t.Errorf("clearing: %v, %v left", err, s.Faults())
	}
	last(t, s)
	got := must.Get(far.Requests(t.Context(), 0))(t)
	if diff := cmp.Diff(s.Requests(0), got); diff != "" || len(got) != 1 || got[0].Header.Get("X-Remote-User") != "jane" {
		t.Errorf("requests (-here +there):\n%s", diff)
	}
	if stats, err := far.Stats(t.Context()); err != nil || stats != s.Stats() {
		t.Errorf("stats %+v, %v", stats, err)
	}
	if err := far.Forget(t.Context()); err != nil || len(s.Requests(0)) != 0 {
		t.Errorf("forgetting: %v", err)
	}
	if err := far.Emit(t.Context(), extension.Event{Object: json.RawMessage(`{"x":1}`)}); err != nil {
		t.Error(err)
	}
	if err := far.Emit(t.Context(), extension.Event{Group: "none.test"}); err == nil {
		t.Error("an event for an unknown group was sent")
	}
	res := must.Get(http.Get(web.URL + "/ca"))(t)
	defer res.Body.Close()
	if pem, _ := io.ReadAll(res.Body); string(pem) != string(s.CA.PEM()) {
		t.Errorf("CA %q", pem)
	}
}
