package h2

import (
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Each SETTINGS moves the windows of all streams, and lets each of them send a byte.
func TestWindowSeesaw(t *testing.T) {
	r := newRig(t)
	c := r.client()
	for id := uint32(1); id < 500; id += 2 {
		c.request(id, "POST", false)
	}
	n := 0
	for ; n < 10_000 && !c.c.closing; n++ {
		_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n % 2)})
		c.flush()
	}
	if n < 10 || n > 100 {
		t.Errorf("%d SETTINGS were taken, for 250 streams each", n)
	}
	r.clean()
}

// Whoever asks again and again as nobody is asked to go, and what others have under way on the connection is answered.
func TestUnauthorizedFlood(t *testing.T) {
	r := newRig(t)
	r.decide = func(h *Head, _ func(Plan)) (Plan, bool) {
		if h.Method == "GET" {
			return Plan{Serve: http.NotFoundHandler()}, true
		}
		return r.forward(r.ep), true
	}
	c := r.client()
	c.request(1, "POST", true)
	b := r.backend(0)
	b.see()
	id, said := uint32(3), ""
	for ; id < 10_000 && !strings.Contains(said, "GOAWAY"); id += 2 {
		c.get(id)
		r.e.localEnd(r.locals[len(r.locals)-1], http.StatusUnauthorized, []hpack.HeaderField{{Name: ":status", Value: "401"}}, nil)
		r.run()
		said = strings.Join(c.see(), "|")
	}
	if n := id / 2; n < 90 || n > 130 {
		t.Errorf("%d requests were answered with 401", n)
	}
	if !strings.Contains(said, "NO_ERROR|HEADERS") {
		t.Errorf("the last was told %s", said)
	}
	answered := len(r.locals)
	for range 400 { // what was under way
		if c.get(id); len(r.locals) > answered {
			t.Fatalf("stream %d was answered", id)
		}
		id += 2
	}
	b.respond(1, "ok")
	c.want("HEADERS 1 :status=200", `DATA 1 "ok" END`)
	r.clean()
	if !c.c.closing {
		t.Error("the connection is still open")
	}
}
