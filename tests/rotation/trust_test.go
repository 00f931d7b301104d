//go:build e2e

package rotation

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

const (
	// grace is how long watches continue after their connection lost its trust.
	grace = 5 * time.Second
	// slack is the tolerance for a busy machine.
	slack = time.Second
)

func noOverlapFlag(t *testing.T, s *stage) {
	strict := startFront(t, s.w, s.lane, "--ca-rotation-overlap=0")
	r := startRemote(t, s.w, s.lane, "noflag", nil)
	distrusted(t, strict, r, func() { r.trust(t, r.new) })
}

func noOverlapAnnotation(t *testing.T, s *stage) {
	r := startRemote(t, s.w, s.lane, "noannotation", map[string]string{"ca-rotation-overlap": "0s"})
	distrusted(t, s.front, r, func() { r.trust(t, r.new) })
}

// droppedCA removes a CA as if its key was stolen: there must be no overlap, which the thief could
// use.
func droppedCA(t *testing.T, s *stage) {
	r := startRemote(t, s.w, s.lane, "dropped", nil)
	s.available(t, r.target())
	s.loaded(t, r, func() { r.trust(t, r.old, r.new) })
	distrusted(t, s.front, r, func() { r.trust(t, r.new) })
}

// overlapEnds has a backend that never gets a certificate of its new bundle.
func overlapEnds(t *testing.T, s *stage) {
	const overlap = 4 * time.Second
	r := startRemote(t, s.w, s.lane, "late", map[string]string{"ca-rotation-overlap": overlap.String()})
	distrusted(t, s.front, r, func() {
		r.trust(t, r.new)
		begun := time.Now()
		c := s.client(user(s.admin), true)
		defer c.close()
		suite.Eventually(t, overlap+2*slack, "the overlap is over", func() (bool, string) {
			_, err := c.get(t.Context(), r.target().get)
			return err != nil, "it still answers"
		})
		if took := time.Since(begun); took < overlap-slack {
			t.Errorf("the overlap was over after %s, want %s", took, overlap)
		}
	})
}

func expiredBackend(t *testing.T, s *stage) {
	end := soon()
	r := startRemote(t, s.w, s.lane, "expired", nil, func(r *remote) {
		r.SetPair(r.old.Issue(pki.Leaf{CommonName: "extension", Names: []string{r.host()}, NotAfter: end}))
	})
	distrusted(t, s.front, r, func() { suite.Pause(t, time.Until(end)+slack) }) // expired chains are detected once a second
}

// distrusted opens a watch and calls end, after which Fairlead must not trust the backend's
// certificate.
func distrusted(t *testing.T, f *front, r *remote, end func()) {
	t.Helper()
	tg := r.target()
	f.available(t, tg)
	emitEvents(t, r.w, r)
	c := f.client(user(f.admin), true)
	defer c.close()
	w := &watching{who: "the watch"}
	over := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { over <- w.watch(ctx, c, tg.watch) }() // ends with ctx
	suite.Eventually(t, takenWithin, "the watch is open", func() (bool, string) { return w.events.Load() > 2, fmt.Sprint(w.events.Load()) })

	end()
	begun := time.Now()
	refused := suite.Eventually(t, slack, "requests are refused", func() (bool, string) {
		status, err := c.get(t.Context(), tg.get)
		return status == 503, fmt.Sprintf("%d %v", status, err)
	})
	since := time.Now()
	limit := time.NewTimer(grace + slack)
	defer limit.Stop()
	for n := 0; ; n++ {
		select {
		case err := <-over:
			if err != nil {
				t.Errorf("the watch was cut off: %v", err)
			}
			t.Logf("requests refused after %s, the watch ended after %s, %d more requests refused meanwhile",
				refused.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond), n)
			if got := r.handled(since); len(got) > 0 {
				t.Errorf("%d requests reached the backend after the first was refused, such as %s", len(got), got[0].Target)
			}
			if got := f.metric(t, "fairlead_certificate_backend_refused_total", `"v1.`+r.group+`"`); len(got) == 0 {
				t.Error("no refused handshake is counted")
			}
			return
		case <-limit.C:
			t.Fatalf("the watch is still open %s after the end of its trust", grace+slack)
		default:
		}
		if status, err := c.get(t.Context(), tg.get); status != 503 {
			t.Fatalf("a request was answered with %d (%v) after another was refused", status, err)
		}
		suite.Pause(t, 50*time.Millisecond)
	}
}

func backendFirst(t *testing.T, s *stage) {
	r := startRemote(t, s.w, s.lane, "first", map[string]string{"probe-interval": "1s"})
	healed(t, s, r, func() { r.trust(t, r.old, r.new) })
}

func backendFirstConfigMap(t *testing.T, s *stage) {
	annotations := caFrom(s.lane, "firstmap")
	annotations["probe-interval"] = "1s"
	r := startRemote(t, s.w, s.lane, "firstmap", annotations)
	healed(t, s, r, func() { r.refer(t, r.old, r.new) })
}

// healed switches the backend before its bundle, waits until requests fail and the prober's pauses
// are long, and then calls arrive, which updates the bundle.
func healed(t *testing.T, s *stage, r *remote, arrive func()) {
	t.Helper()
	const outage = 12 * time.Second // 250 ms doubled up to 5 s: 250+500+1000+2000+4000, and into the next pause
	tg := r.target()
	s.available(t, tg)
	c := s.client(user(s.admin), true)
	defer c.close()
	r.serve(r.new)
	suite.Eventually(t, 10*time.Second, "the backend's new certificate is refused", func() (bool, string) {
		status, err := c.get(t.Context(), tg.get)
		return status == 503, fmt.Sprintf("%d %v", status, err)
	})
	suite.Pause(t, outage)
	arrive()
	took := suite.Eventually(t, 10*time.Second, "requests are answered again", func() (bool, string) {
		_, err := c.get(t.Context(), tg.get)
		return err == nil, fmt.Sprint(err)
	})
	t.Logf("recovered %s after the bundle arrived", took.Round(time.Millisecond))
	if took > time.Second {
		t.Errorf("recovered %s after the bundle arrived, want at most 1 s", took)
	}
	for range 50 {
		if _, err := c.get(t.Context(), tg.get); err != nil {
			t.Fatalf("after it recovered: %v", err)
		}
		suite.Pause(t, 20*time.Millisecond)
	}
}
