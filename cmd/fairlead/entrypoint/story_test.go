package entrypoint

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/members"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// replica is a running publisher.
type replica struct {
	*Publisher
	unready atomic.Bool
	log     logbook.Book
	stop    func() // ends Run as a drain does, and waits
}

// stage is an apiserver with replicas and Leases of others.
type stage struct {
	*testing.T
	*apiserver
	replicas map[string]*replica
	others   map[string]*coordinationv1.Lease
	counted  int64 // writes
}

func (s *stage) start(name, address, is string) {
	r, c := &replica{}, s.config()
	r.unready.Store(is == "unready")
	_, c.Zone, _ = strings.Cut(is, "zone=")
	c.Address, c.Identity, c.Logger = netip.MustParseAddrPort(address), name, slog.New(slog.NewTextHandler(&r.log, nil))
	c.Metrics = prometheus.NewRegistry()
	c.Ready = func() error {
		if r.unready.Load() {
			return errors.New("no table")
		}
		return nil
	}
	said := fmt.Sprint(error(nil))
	c.Ended = func(err error) { // as the check of the process does
		if now := fmt.Sprint(err); now != said {
			said = now
			_, _ = fmt.Fprintln(&r.log, now)
		}
	}
	r.Publisher = New(c)
	r.stop = must.Run(s, r.Run)
	s.replicas[name] = r
}

// publishes checks what is published: "nothing" before the first time, or addresses.
func (s *stage) publishes(at string, want []string) {
	s.Helper()
	synctest.Wait()
	text := "nothing"
	if strings.Join(want, "") != text {
		text = ""
		for i, address := range want {
			a := netip.MustParseAddrPort(address)
			text += []string{"", ", "}[min(i, 1)] + fmt.Sprintf("https %s %d", a.Addr(), a.Port())
		}
	}
	check.Same(s.T, text, s.published(s.T), "%s", at)
}

// renew writes another's Lease. Its clock need not be right.
func (s *stage) renew(name, address string, at time.Time) {
	leases, renewed := s.config().Client.CoordinationV1().Leases("kube-system"), metav1.NewMicroTime(at)
	if o := s.others[name]; o != nil {
		o.Spec.RenewTime = &renewed
		s.others[name] = must.Get(leases.Update(s.Context(), o, metav1.UpdateOptions{}))(s)
		return
	}
	o := must.Get(leases.Get(s.Context(), "fairlead-entrypoint-one", metav1.GetOptions{}))(s).DeepCopy()
	o.Name, o.Spec.RenewTime, o.Annotations[addressAnnotation] = name, &renewed, address
	s.others[name] = must.Get(leases.Create(s.Context(), o, metav1.CreateOptions{}))(s)
}

// do takes one step of a story.
func (s *stage) do(at string, words ...string) {
	s.Helper()
	duration := func(i int) time.Duration { return must.Get(time.ParseDuration(words[i]))(s) }
	number := func() int { return must.Get(strconv.Atoi(words[len(words)-1]))(s) }
	r := s.replicas[words[min(1, len(words)-1)]]
	switch words[0] {
	case "start": // replica address [unready|zone=name]
		s.start(words[1], words[2], append(words, "")[3])
	case "zones", "unzone": // words... of what is published; another writer drops them, or an older release, which knows nothing of them
		list := s.config().Client.DiscoveryV1().EndpointSlices("default")
		slice := must.Get(list.Get(s.Context(), "kubernetes", metav1.GetOptions{}))(s)
		if words[0] == "zones" {
			check.Same(s.T, strings.Join(words[1:], " "), zonesOf(slice), "%s", at)
			return
		}
		slice = slice.DeepCopy()
		for i := range slice.Endpoints {
			slice.Endpoints[i].Zone, slice.Endpoints[i].Hints = nil, nil
		}
		if words[1] == "older" {
			delete(slice.Annotations, zonesAnnotation)
		}
		must.Get(list.Update(s.Context(), slice, metav1.UpdateOptions{}))(s)
	case "families": // of the Service
		s.families(words[1:])
	case "ready", "unready": // replica
		r.unready.Store(words[0] == "unready")
	case "withdraw":
		r.Withdraw()
	case "leave": // as a drain ends
		r.Withdraw()
		r.stop()
	case "die": // as in a crash: nothing is withdrawn
		s.down.Store(true)
		r.stop()
		s.down.Store(false)
	case "after": // duration [address...]
		time.Sleep(duration(1))
		s.publishes(at, words[2:])
	case "pass": // duration
		time.Sleep(duration(1))
	case "steady": // duration [address...]
		for end := time.Now().Add(duration(1)); time.Now().Before(end); time.Sleep(time.Second / 8) {
			s.publishes(at, words[2:])
		}
	case "writes": // [number]: since the last such step
		n := s.writes.Load()
		if len(words) > 1 {
			check.Same(s.T, int64(number()), n-s.counted, "%s: writes", at)
		}
		s.counted = n
	case "down", "full", "up":
		s.down.Store(words[0] == "down")
		s.full.Store(words[0] == "full")
	case "conflict": // with the next update or deletion of a Lease
		s.conflict.Store(&words[1])
	case "conflicted":
		check.Same(s.T, "", *s.conflict.Load(), "%s: what was not contested", at)
	case "refuse": // reads or writes of the Endpoints
		s.refuse.Store(&words[1])
	case "last-moment": // the next Lease to be deleted is renewed before
		s.lastMoment.Store(true)
	case "overwrite": // [address [unannotated]]
		s.overwrite(s.T, append(words, "")[1], len(words) < 3)
	case "fight": // duration address attempts: another writer overwrites whatever differs from its own
		before, tries := s.writes.Load(), int64(0)
		for end := time.Now().Add(duration(1)); time.Now().Before(end); {
			time.Sleep(10 * time.Second)
			if synctest.Wait(); s.published(s.T) != "https "+words[2]+" 6443" {
				s.overwrite(s.T, words[2], true)
				tries++
			}
		}
		if n := int64(number()); tries > n || (s.writes.Load()-before)/4 > n {
			s.Errorf("%s: %d attempts, %d writes", at, tries, s.writes.Load()-before)
		}
	case "lease": // name address age
		s.renew(words[1], words[2], time.Now().Add(-duration(3)))
	case "renews": // name duration [address...]: every two seconds
		for end := time.Now().Add(duration(2)); time.Now().Before(end); {
			s.renew(words[1], "", s.others[words[1]].Spec.RenewTime.Add(members.Interval))
			time.Sleep(members.Interval + time.Millisecond)
			s.publishes(at, words[3:])
		}
	case "leases", "slices":
		n := len(must.Get(s.config().Client.CoordinationV1().Leases("kube-system").List(s.Context(), metav1.ListOptions{}))(s).Items)
		if words[0] == "slices" {
			n = len(must.Get(s.config().Client.DiscoveryV1().EndpointSlices("default").List(s.Context(), metav1.ListOptions{}))(s).Items)
		}
		check.Same(s.T, number(), n, "%s: %s", at, words[0])
	case "metric": // replica name value
		m := map[string]prometheus.Collector{"published": r.metrics.published, "replicas": r.metrics.replicas, "contested": r.metrics.contested, "foreign": r.metrics.foreign}
		check.Same(s.T, float64(number()), testutil.ToFloat64(m[words[2]]), "%s: %s", at, words[2])
	case "logged": // replica words... times
		text := strings.Join(words[2:len(words)-1], " ")
		check.Same(s.T, number(), strings.Count(r.log.String(), text), "%s: %q in %s", at, text, r.log.String())
	default:
		s.Fatalf("%s: unknown step %s", at, words[0])
	}
}

// Each story starts and ends replicas, and says which addresses are published when.
func TestStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, tale *story.Story) {
		synctest.Test(t, func(t *testing.T) {
			var s *stage
			for at, words := range tale.Steps() {
				if words[0] != "anew" {
					s.do(at, words...)
					continue
				}
				if s != nil {
					for _, r := range s.replicas {
						r.stop()
					}
				}
				s = &stage{T: t, apiserver: newAPIServer(), replicas: map[string]*replica{}, others: map[string]*coordinationv1.Lease{}}
			}
		})
	})
}

// Two replicas may delete a slice that is not wanted any more at the same moment.
func TestAnotherWasFaster(t *testing.T) {
	must.Do(t, New(newAPIServer().config()).deleteSlice(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes-1"}}))
}

func TestCheckAddress(t *testing.T) {
	must.Do(t, CheckAddress(netip.MustParseAddr("10.0.0.1")))
	for name, a := range map[string]netip.Addr{
		"no address": {}, "loopback": netip.MustParseAddr("127.0.0.1"), "mapped loopback": netip.MustParseAddr("::ffff:127.0.0.1"),
		"any": netip.MustParseAddr("0.0.0.0"), "mapped any": netip.MustParseAddr("::ffff:0.0.0.0"), "link-local": netip.MustParseAddr("fe80::1"),
	} {
		check.Same(t, true, CheckAddress(a) != nil, "%s: no error", name)
	}
}
