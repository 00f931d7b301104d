package engine

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// While its only backend restarts, a request waits for it, with its body and without an error.
func TestWaitsForBackend(t *testing.T) {
	r := newRig(t)
	r.plan = Plan{Retries: 2, Wait: 2 * time.Second}
	r.refuse = errors.New("connection refused")
	c := r.client()
	c.get(1)
	c.request(3, "POST", false)
	c.data(3, "body", true)
	c.want()
	if r.inFlight != 0 {
		t.Errorf("%d requests count as in flight at an endpoint that cannot be reached", r.inFlight)
	}
	dials := r.failed
	r.tick(time.Second)
	c.want()
	if n := r.failed - dials; n < 2 || n > 16 {
		t.Errorf("%d dials in a second", n)
	}
	r.refuse = nil
	r.tick(500 * time.Millisecond)
	b := r.backend(0)
	b.wantPart("HEADERS 1 "+okHead+" END", `DATA 3 "body" END`)
	b.headers(1, true, ":status=200")
	b.send(3, true, ":status=201")
	c.want("HEADERS 1 :status=200 END", "HEADERS 3 :status=201 END")
	r.clean()
}

func TestWaitEnds(t *testing.T) {
	for name, end := range map[string]func(r *rig, c *peer){
		"its time is over": func(r *rig, c *peer) {
			r.tick(2500 * time.Millisecond)
			c.want("HEADERS 1 :status=503 content-length=0 END")
		},
		"the client has gone": func(r *rig, c *peer) { c.rst(1, http2.ErrCodeCancel); r.tick(3 * time.Second); c.want() },
		"deadline": func(r *rig, c *peer) {
			r.tick(1500 * time.Millisecond)
			c.want("HEADERS 1 :status=504 content-length=0 END")
			r.tick(3 * time.Second)
			c.want()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.plan = Plan{Retries: 2, Wait: 2 * time.Second}
			if name == "deadline" {
				r.plan.Deadline = time.Second
			}
			r.refuse = errors.New("connection refused")
			c := r.client()
			c.get(1)
			r.tick(time.Second / 2)
			c.want()
			end(r, c)
			if len(r.outcomes) != 1 || r.inFlight != 0 {
				t.Errorf("outcomes %v, %d in flight", r.outcomes, r.inFlight)
			}
			r.clean()
		})
	}
}
