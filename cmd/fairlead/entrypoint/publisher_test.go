package entrypoint

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// story runs tell in a synctest bubble, with an apiserver of its own.
func story(t *testing.T, tell func(*testing.T, *apiserver)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { tell(t, newAPIServer(t)) })
}

type replica struct {
	*Publisher
	unready atomic.Bool
	log     logbook.Book
	leave   func() // ends Run as a drain does, and waits
	die     func() // ends Run without withdrawal, as a crash does
}

// start runs a publisher until the test ends.
func start(t *testing.T, s *apiserver, identity, address string) *replica {
	t.Helper()
	return run(t, s, &replica{}, identity, address)
}

func startUnready(t *testing.T, s *apiserver, identity, address string) *replica {
	t.Helper()
	r := &replica{}
	r.unready.Store(true)
	return run(t, s, r, identity, address)
}

func run(t *testing.T, s *apiserver, r *replica, identity, address string) *replica {
	t.Helper()
	c := s.config()
	c.Address, c.Identity, c.Logger = netip.MustParseAddrPort(address), identity, slog.New(slog.NewTextHandler(&r.log, nil))
	c.Metrics = prometheus.NewRegistry()
	c.Ready = func() error {
		if r.unready.Load() {
			return errors.New("no table")
		}
		return nil
	}
	r.Publisher = must.Get(New(c))(t)
	r.leave = must.Run(t, r.Run)
	r.die = func() {
		s.down.Store(true)
		r.leave()
		s.down.Store(false)
	}
	return r
}

// want waits for after, then checks what is published.
func want(t *testing.T, s *apiserver, after time.Duration, when, want string) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	check.Same(t, want, s.published(t), "%s", when)
}

func TestAnEntryComesAndLeavesWithItsReplica(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a := startUnready(t, s, "one", "10.0.0.1:8443")
		want(t, s, 5*time.Second, "unready", "nothing")
		a.unready.Store(false)
		want(t, s, time.Second, "ready", "https 10.0.0.1 8443")
		b := start(t, s, "two", "10.0.0.2:8443")
		want(t, s, time.Second, "two", "https 10.0.0.1 8443, https 10.0.0.2 8443")
		writes := s.written()
		time.Sleep(time.Hour)
		check.Same(t, 0, s.written()-writes, "writes in an hour in which nothing happened")
		b.unready.Store(true)
		want(t, s, time.Second, "one is unready", "https 10.0.0.1 8443")
		b.unready.Store(false)
		want(t, s, time.Second, "ready again", "https 10.0.0.1 8443, https 10.0.0.2 8443")
		b.Withdraw()
		b.Withdraw()
		want(t, s, 0, "the moment it drains", "https 10.0.0.1 8443")
		want(t, s, time.Minute, "still ready, but withdrawn", "https 10.0.0.1 8443")
		if one, two := testutil.ToFloat64(a.metrics.published), testutil.ToFloat64(b.metrics.published); one != 1 || two != 0 {
			t.Errorf("the published metrics of the two: %v and %v", one, two)
		}
		a.leave()
		want(t, s, 0, "ended without a word", "")
	})
}

// A drain without a delay finishes its withdrawal before Run returns.
func TestAWithdrawalIsFinished(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a := start(t, s, "one", "10.0.0.1:8443")
		time.Sleep(time.Second)
		a.Withdraw()
		a.leave()
		want(t, s, 0, "ended at once", "")
	})
}

// A replica that never was ready does not replace what kube-apiserver published.
func TestNothingIsTakenForNothing(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		former := start(t, s, "former", "10.0.0.9:6443")
		time.Sleep(time.Second)
		former.die()
		a := startUnready(t, s, "one", "10.0.0.1:8443")
		time.Sleep(time.Hour)
		a.leave()
		want(t, s, 0, "never ready", "https 10.0.0.9 6443")
	})
}

func TestADeadReplicaLeaves(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a, b := start(t, s, "one", "10.0.0.1:8443"), start(t, s, "two", "10.0.0.2:8443")
		time.Sleep(time.Minute)
		b.die()
		want(t, s, 0, "just dead", "https 10.0.0.1 8443, https 10.0.0.2 8443")
		want(t, s, 12*time.Second, "its Lease has run out", "https 10.0.0.1 8443")
		list, err := s.config().Leases.Leases("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: leaseLabel})
		if err != nil || len(list.Items) != 1 {
			t.Errorf("%d Leases are left, want one (%v)", len(list.Items), err)
		}
		check.Same(t, 1, testutil.ToFloat64(a.metrics.replicas), "replicas in the metric")
	})
}

// A Lease that is renewed while another replica deletes it stays: its owner was slow, not dead.
func TestALeaseRenewedAtTheLastMoment(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a := start(t, s, "one", "10.0.0.1:8443")
		time.Sleep(time.Second)
		leases := s.config().Leases.Leases("kube-system")
		slow := must.Get(leases.Get(t.Context(), leaseName(a.config.Address), metav1.GetOptions{}))(t)
		slow.Name, slow.Annotations[addressAnnotation] = "slow", "10.0.0.2:8443"
		slow = must.Get(leases.Create(t.Context(), slow, metav1.CreateOptions{}))(t)
		var late atomic.Bool
		s.fake.Lock() // PrependReactor does not lock
		s.fake.PrependReactor("delete", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if !late.Swap(true) {
				renewed, now := slow.DeepCopy(), metav1.NewMicroTime(time.Now())
				renewed.Spec.RenewTime = &now
				if err := s.update(t, a, renewed); err != nil {
					t.Error(err)
				}
			}
			return false, nil, nil
		})
		s.fake.Unlock()
		time.Sleep(leaseDuration + interval)
		if _, err := leases.Get(t.Context(), "slow", metav1.GetOptions{}); !late.Load() || err != nil {
			t.Errorf("deletion attempted: %v; getting the Lease: %v", late.Load(), err)
		}
	})
}

// An expired Lease is not counted, even if it cannot be deleted.
func TestALeaseRunsOut(t *testing.T) {
	m, now := members{known: map[string]*member{}}, time.Now()
	renewed := metav1.NewMicroTime(now)
	lease := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
	for i, want := range []string{"1 0", "1 0", "0 1", "0 1"} {
		alive, dead := m.observe([]coordinationv1.Lease{lease}, true, now.Add(time.Duration(i)*leaseDuration/2))
		check.Same(t, want, fmt.Sprint(len(alive), " ", len(dead)), "after %d halves of its time", i)
	}
}

// A failed write of the Endpoints is logged.
func TestEndpointsAreRefused(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		s.fake.PrependReactor("*", "endpoints", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetVerb() != "get", nil, errors.New("no")
		})
		a := start(t, s, "one", "10.0.0.1:8443")
		time.Sleep(time.Minute)
		if log := a.log.String(); !strings.Contains(log, "writing endpoints: no") {
			t.Errorf("the failure is not logged: %s", log)
		}
	})
}

// A new replica does not publish a dead one whose Lease it has just found.
func TestNobodyBringsTheDeadBack(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		dead := start(t, s, "one", "10.0.0.1:8443")
		time.Sleep(time.Second)
		dead.die()
		time.Sleep(time.Hour)
		start(t, s, "two", "10.0.0.2:8443")
		want(t, s, time.Second, "after an hour", "https 10.0.0.2 8443")
	})
}

// A replica whose clock is an hour behind counts as alive while it renews its Lease.
func TestForeignClocksDoNotMatter(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a := start(t, s, "one", "10.0.0.1:8443")
		c := s.config()
		time.Sleep(time.Second)
		other := must.Get(c.Leases.Leases("kube-system").Get(t.Context(), leaseName(a.config.Address), metav1.GetOptions{}))(t)
		past := metav1.NewMicroTime(time.Now().Add(-time.Hour))
		other.Name, other.Spec.RenewTime, other.Annotations[addressAnnotation] = "other", &past, "10.0.0.2:8443"
		other = must.Get(c.Leases.Leases("kube-system").Create(t.Context(), other, metav1.CreateOptions{}))(t)
		want(t, s, interval, "not seen to be renewed", "https 10.0.0.1 8443")
		for range 20 {
			past = metav1.NewMicroTime(past.Add(interval))
			other.Spec.RenewTime = &past
			other = must.Get(c.Leases.Leases("kube-system").Update(t.Context(), other, metav1.UpdateOptions{}))(t)
			want(t, s, interval+time.Millisecond, "renewed", "https 10.0.0.1 8443, https 10.0.0.2 8443")
		}
		want(t, s, leaseDuration+interval, "no longer renewed", "https 10.0.0.1 8443")
	})
}

// While the apiserver is down and nobody can renew, no replica counts as dead. One that starts
// meanwhile is published soon afterwards.
func TestAnApiserverThatWasAwayCostsNobodyItsPlace(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		s.down.Store(true)
		start(t, s, "one", "10.0.0.1:8443")
		time.Sleep(retry / 2)
		s.down.Store(false)
		want(t, s, retry/2+readyInterval, "back at the start", "https 10.0.0.1 8443")
		time.Sleep(interval / 2)
		start(t, s, "two", "10.0.0.2:8443")
		time.Sleep(time.Minute)
		s.down.Store(true)
		time.Sleep(10 * time.Minute)
		s.down.Store(false)
		writes := s.written()
		want(t, s, time.Minute, "back", "https 10.0.0.1 8443, https 10.0.0.2 8443")
		check.Same(t, 0, s.written()-writes, "writes: a replica was withdrawn")
	})
}

// A process that replaces another at the same address takes over its Lease, and the drain of the
// former does not delete it.
func TestASuccessorAtTheSameAddress(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a := start(t, s, "one", "10.0.0.1:8443")
		time.Sleep(time.Second)
		start(t, s, "two", "10.0.0.1:8443")
		time.Sleep(500 * time.Millisecond)
		a.Withdraw()
		want(t, s, 0, "the former drains", "https 10.0.0.1 8443")
		a.leave()
		want(t, s, time.Minute, "the former is gone", "https 10.0.0.1 8443")
	})
}

func TestFamiliesAndPorts(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a := start(t, s, "one", "10.0.0.1:8443")
		b := start(t, s, "two", "10.0.0.2:9443")
		start(t, s, "three", "[fd00::1]:8443")
		want(t, s, 5*time.Second, "all", "https 10.0.0.1 8443, https 10.0.0.2 9443, https fd00::1 8443")
		writes := s.written()
		time.Sleep(time.Hour)
		check.Same(t, 0, s.written()-writes, "writes of replicas that agree on the slices")
		a.leave()
		b.leave()
		want(t, s, 5*time.Second, "another family is the first one now", "https fd00::1 8443")
		list, err := s.config().Slices.EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != "kubernetes" {
			t.Errorf("slices left behind: %v (%v)", list.Items, err)
		}
	})
}

func TestGivesWayToAnotherWriter(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a := start(t, s, "one", "10.0.0.1:8443")
		time.Sleep(5 * time.Second)
		s.overwrite(t, "10.0.0.9")
		want(t, s, interval, "once may be a mistake", "https 10.0.0.1 8443")
		if strings.Contains(a.log.String(), "--endpoint-reconciler-type=none") || testutil.ToFloat64(a.metrics.contested) != 0 {
			t.Errorf("one foreign write already counts as contested:\n%s", a.log.String())
		}
		time.Sleep(5 * time.Second)
		s.overwrite(t, "10.0.0.9")
		want(t, s, interval, "twice is a writer", "https 10.0.0.9 6443")
		if !strings.Contains(a.log.String(), "--endpoint-reconciler-type=none") || testutil.ToFloat64(a.metrics.contested) != 1 {
			t.Errorf("not reported: contested %v\n%s", testutil.ToFloat64(a.metrics.contested), a.log.String())
		}
		// Retries continue with growing pauses, so that clients are moved less and less often.
		writes := s.written()
		for range 6 * 60 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if s.published(t) != "https 10.0.0.9 6443" {
				s.overwrite(t, "10.0.0.9")
			}
		}
		if n := (s.written() - writes) / 4; n > 16 {
			t.Errorf("%d attempts in an hour", n)
		}
		check.Same(t, 1, testutil.ToFloat64(a.metrics.contested), "contested")
		// The other writer stops.
		want(t, s, longPause+interval, "taken over", "https 10.0.0.1 8443")
		time.Sleep(quiet + interval)
		check.Same(t, 0, testutil.ToFloat64(a.metrics.contested), "contested at the end")
		check.Same(t, 1, strings.Count(a.log.String(), "no other writer changes the endpoints"), "lines about the end")
	})
}

// kube-apiserver removes its address as it ends. A replica that gave way then returns at once.
func TestGivesWayToNobodyElse(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		start(t, s, "one", "10.0.0.1:8443")
		for range 2 {
			time.Sleep(5 * time.Second)
			s.overwrite(t, "10.0.0.9")
		}
		want(t, s, 30*time.Second, "given way", "https 10.0.0.9 6443")
		s.overwrite(t, "")
		want(t, s, interval, "nobody is left", "https 10.0.0.1 8443")
	})
}

// A writer of only the EndpointSlice counts as another writer, too.
func TestAForeignSlice(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a := start(t, s, "one", "10.0.0.1:6443")
		time.Sleep(5 * time.Second)
		s.overwrite(t, "10.0.0.1") // the Endpoints do not change
		want(t, s, interval, "the same", "https 10.0.0.1 6443")
		check.Same(t, 1, testutil.ToFloat64(a.metrics.foreign), "foreign writes")
	})
}

// What kube-apiserver published earlier is replaced, including its EndpointSlice.
func TestTakesOver(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		former := start(t, s, "none", "10.0.0.7:8443")
		time.Sleep(time.Second)
		former.leave()
		c := s.config()
		e := must.Get(c.Endpoints.Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
		e.Annotations = nil
		must.Get(c.Endpoints.Endpoints("default").Update(t.Context(), e, metav1.UpdateOptions{}))(t)
		s.overwrite(t, "10.0.0.9")
		a := start(t, s, "one", "10.0.0.1:8443")
		want(t, s, time.Second, "taken over", "https 10.0.0.1 8443")
		check.Same(t, 0, testutil.ToFloat64(a.metrics.foreign), "foreign writes")
	})
}

// A Lease with an address that Kubernetes would refuse must not block the other replicas.
func TestALeaseWithABadAddress(t *testing.T) {
	story(t, func(t *testing.T, s *apiserver) {
		a := start(t, s, "one", "10.0.0.1:8443")
		time.Sleep(time.Second)
		c := s.config()
		mine := must.Get(c.Leases.Leases("kube-system").Get(t.Context(), leaseName(a.config.Address), metav1.GetOptions{}))(t)
		for name, address := range map[string]string{"loop": "127.0.0.1:8443", "local": "169.254.0.1:1", "none": "", "port": "10.0.0.3:0", "zone": "[fe80::1%eth0]:1", "name": "x:1"} {
			bad := mine.DeepCopy()
			bad.Name, bad.Annotations[addressAnnotation] = name, address
			must.Get(c.Leases.Leases("kube-system").Create(t.Context(), bad, metav1.CreateOptions{}))(t)
		}
		want(t, s, interval, "with bad Leases", "https 10.0.0.1 8443")
	})
}

func TestNewRefuses(t *testing.T) {
	s := newAPIServer(t)
	good := s.config()
	good.Identity, good.Ready, good.Address = "one", func() error { return nil }, netip.MustParseAddrPort("10.0.0.1:8443")
	must.Get(New(good))(t)
	for name, change := range map[string]func(*Config){
		"no client":        func(c *Config) { c.Leases = nil },
		"no identity":      func(c *Config) { c.Identity = "" },
		"no address":       func(c *Config) { c.Address = netip.AddrPort{} },
		"no port":          func(c *Config) { c.Address = netip.MustParseAddrPort("10.0.0.1:0") },
		"loopback":         func(c *Config) { c.Address = netip.MustParseAddrPort("127.0.0.1:1") },
		"mapped loopback":  func(c *Config) { c.Address = netip.MustParseAddrPort("[::ffff:127.0.0.1]:1") },
		"any":              func(c *Config) { c.Address = netip.MustParseAddrPort("0.0.0.0:1") },
		"link-local":       func(c *Config) { c.Address = netip.MustParseAddrPort("[fe80::1]:1") },
		"registered twice": func(c *Config) { c.Metrics = taken(t) },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func taken(t *testing.T) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewRegistry()
	must.Get(newMetrics(r))(t)
	return r
}
