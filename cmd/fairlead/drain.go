package main

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/registry"
)

// drain ends serving so that no client sees an error: first not ready, so that load balancers stop
// sending; then GOAWAY; then requests in flight end in their own time. It blocks until all have
// ended or the time limit is over. It is called once, after the signal.
func (s *server) drain() {
	delay := max(s.o.shutdownDelay, s.ports.front.HandOver(), s.ports.admin.HandOver()) // before it is seen unready
	// Clients look elsewhere: by their load balancer, by the endpoints in the cluster, by a closed HTTP/1.1 connection.
	s.draining.Store(true)
	s.tellSystemd(daemon.SdNotifyStopping)
	s.proxy.Leave()
	if s.entry != nil {
		s.entry.Withdraw()
		delay = max(delay, 2*time.Second) // as kube-apiserver, it leaves the endpoints before it closes its port
	}
	s.log.Info("draining: unready", "delay", delay)
	time.Sleep(delay) //nolint:forbidigo // load balancers need this time to notice, and give no sign
	half := s.o.watchGrace / 2
	defer time.AfterFunc(half, func() { s.proxy.EndLongRunning(s.o.watchGrace - half) }).Stop()
	ctx, cancel := context.WithTimeout(context.Background(), s.o.drainLimit())
	defer cancel()
	if s.o.sendRetryAfter {
		// New requests shall be retried later (429), on old and new connections, until those in
		// flight have ended. Without this, a client that knows no other replica finds none.
		s.log.Info("draining: rejecting new requests", "underWay", s.proxy.UnderWay())
		s.proxy.RejectNew()
		const pause = 20 * time.Millisecond // short compared with a request, long compared with the cost of a look
		ended := func(context.Context) (bool, error) { return s.proxy.UnderWay() == 0, nil }
		_ = wait.PollUntilContextCancel(ctx, pause, true, ended) // front.Shutdown reports what is left
	}
	s.log.Info("draining: no new connections", "sessions", s.proxy.Sessions())
	if err := s.front.Shutdown(ctx, s.o.watchGrace); err != nil {
		s.log.Warn("draining: requests were cut", "err", err)
	}
	if n := s.proxy.Sessions(); n > 0 {
		s.log.Info("draining: ending upgraded sessions", "sessions", n)
	}
	const limit = 6 * time.Second // closing a connection whose peer does not read takes 5 s (crypto/tls)
	last, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	s.proxy.EndSessions(last)
	_ = s.admin.Close() // last: it shows the drain
	s.log.Info("drained")
}

// drainLimit is how long requests and watches under way may take to end: local ones have no --request-timeout.
func (o *options) drainLimit() time.Duration {
	return max(o.requestTimeout, time.Minute, o.watchGrace+time.Second)
}

// firstVerdicts is how long readiness waits, once, for the first verdicts, and discovery for its documents: until then
// requests to extension servers get 503. One that hangs has none for seconds, and must not keep a replica from others.
const firstVerdicts = 2 * time.Second

var (
	errNoTable    = errors.New("the table of APIServices is not complete")
	errNoVerdicts = errors.New("not every APIService has been probed yet")
)

func tableReady(table func() *registry.Table) func(*http.Request) error {
	until := sync.OnceValue(func() time.Time { return time.Now().Add(firstVerdicts) })
	unknown := func(e *registry.Entry) bool { return e.Verdict.Status == "" }
	var passed atomic.Bool
	return func(*http.Request) error {
		t := table()
		switch {
		case passed.Load():
			return nil
		case !t.Complete():
			return errNoTable
		case slices.ContainsFunc(t.Servers(), unknown) && time.Now().Before(until()):
			return errNoVerdicts
		}
		passed.Store(true)
		return nil
	}
}

// followReadiness notifies systemd when this process is first ready, and closes client connections while it is not
// ready, until ctx ends. Behind a TCP load balancer nothing else moves clients to another replica, and here they would
// get 503 for as long as their connection lasts. New connections are still served, each until its first response: the
// load balancer may not have noticed yet, or there may be no other replica. A local apiserver becomes unhealthy only
// with its second failed probe, so one lost probe moves no client. It also moves Fairlead's own connections away from
// unhealthy local apiservers. It does nothing during a drain, which has its own order.
func (s *server) followReadiness(ctx context.Context) error {
	// lookUnready is the interval while this process is not ready: short, because units ordered after this one wait
	// for it. lookReady is that while it is ready, unless there is news: a load balancer takes seconds to notice, too.
	const lookUnready, lookReady = 250 * time.Millisecond, time.Second
	tick := time.NewTicker(lookUnready)
	was, notified := true, false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-s.news:
		}
		if s.kube != nil && s.kube.own != nil {
			s.kube.own.prefer(s.kube.list())
		}
		if s.draining.Load() {
			continue
		}
		cause := s.ready.Err(nil)
		ready := cause == nil
		if ready && !notified {
			s.tellSystemd(daemon.SdNotifyReady)
			was, notified = false, true // who replaces a process waits for the line below
		}
		tick.Reset(map[bool]time.Duration{true: lookReady, false: lookUnready}[ready])
		switch {
		case ready == was:
		case ready:
			s.log.Info("ready")
		default:
			s.log.Info("not ready: clients are sent elsewhere", "reason", cause)
		}
		was = ready
		s.front.Keep(ready)
	}
}

// tellSystemd notifies systemd of a unit with Type=notify (sd_notify(3)). Without NOTIFY_SOCKET it does nothing.
func (s *server) tellSystemd(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil { // the variable stays: no child process reads it
		s.log.Warn("telling systemd", "state", state, "err", err)
	}
}
