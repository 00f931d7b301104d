//go:build e2e

package etcd

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

var (
	many   = flag.Int("apiservices", 1000, "how many APIServices are written at 500 a second")
	within = flag.Duration("within", 10*time.Second, "p99 from an APIService's 201 until both Fairleads route it") // make etcd-load sets 100 ms
)

// everything starts an extension server for any group-version.
func (s *site) everything(t *testing.T) *extension.Server {
	t.Helper()
	return extension.Start(t, extension.Config{CA: s.PKI.Serving.CA, RequestHeaderCA: s.PKI.FrontProxy.CA.Pool(), RejectWith: http.StatusUnauthorized, Record: -1,
		Wrap: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if parts := strings.Split(r.URL.Path, "/"); len(parts) < 4 || parts[1] != "apis" { // not a request for a resource
					next.ServeHTTP(w, r)
				}
			})
		}})
}

func nameOf(i int) string { return fmt.Sprintf("v1.g%05d.example.com", i) }

func things(name string) string {
	version, group, _ := strings.Cut(name, ".")
	return "/apis/" + group + "/" + version + "/things"
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// paced calls f for n numbers, rate times a second, each in its own goroutine.
func paced(n, rate int, f func(i int) error) error {
	var g errgroup.Group
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := range n {
		g.Go(func() error { return f(i) })
		<-tick.C
	}
	return g.Wait()
}

// learns waits until a door has an APIService in its table. It answers with 503 until the first probe has passed.
func (d *door) learns(t *testing.T, name string) error {
	for wait, end := time.Millisecond, time.Now().Add(time.Minute); ; wait = min(2*wait, 50*time.Millisecond) {
		switch res := d.ask(t, http.MethodGet, things(name), ""); {
		case res.Code == http.StatusOK || res.Code == http.StatusServiceUnavailable:
			return nil
		case res.Code != http.StatusNotFound || time.Now().After(end):
			return fmt.Errorf("%s does not route %s: %d %s", d.Part.Name(), name, res.Code, res.Body)
		}
		pause(t.Context(), wait)
	}
}

// testLoad writes 500 APIServices a second to two Fairleads, and measures how soon both route each.
func testLoad(t *testing.T, w *world) {
	s := w.site(t, 2, cluster.Config{Members: 3})
	server := s.everything(t)
	must.Get(s.doors[0].services.Create(t.Context(), s.remote("v1.warm.example.com", server), metav1.CreateOptions{}))(t)
	s.become(t, things("v1.warm.example.com"), http.StatusOK)
	var mu sync.Mutex
	var took []time.Duration
	begun, written := time.Now(), time.Duration(0)
	writers := make(chan struct{}, 16) // a user's limit of concurrent requests
	err := paced(*many, 500, func(i int) error {
		writers <- struct{}{}
		_, err := s.doors[i%2].services.Create(t.Context(), s.remote(nameOf(i), server), metav1.CreateOptions{})
		<-writers
		if err != nil && !apierrors.IsAlreadyExists(err) { // the answer was lost, and client-go retried
			return err
		}
		since := time.Now()
		for _, d := range s.doors {
			if err := d.learns(t, nameOf(i)); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		took, written = append(took, time.Since(since)), max(written, since.Sub(begun))
		return nil
	})
	must.Do(t, err)
	slices.Sort(took)
	p50, p99, most := took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	t.Logf("%d APIServices, %.0f a second: routed by both after p50 %s, p99 %s, max %s", *many, float64(*many)/written.Seconds(), p50, p99, most)
	t.Run("routed by both", func(t *testing.T) {
		if p99 > *within {
			t.Errorf("p99 %s, want %s", p99, *within)
		}
	})
}

// testLeader kills the leader of three members, and a Fairlead, while APIServices are written and
// deleted. Acknowledged writes must persist.
func testLeader(t *testing.T, w *world) {
	s := w.site(t, 2, cluster.Config{Members: 3})
	server := s.everything(t)
	n, rate := 300, 50
	if *many > 1000 { // make etcd-load
		n, rate = *many, 500
	}
	killed := make(chan error, 1)
	err := paced(n, rate, func(i int) error {
		switch i {
		case n / 3:
			go func() { killed <- s.killLeader(t.Context()) }()
		case 2 * n / 3:
			s.doors[1].Part.Kill()
			go func() { killed <- s.doors[1].Part.Restart(t.Context()) }()
		}
		if err := s.surely(t.Context(), i, apierrors.IsAlreadyExists, func(c *door) error {
			_, err := c.services.Create(t.Context(), s.remote(nameOf(i), server), metav1.CreateOptions{})
			return err
		}); err != nil || !doomed(i) {
			return err
		}
		return s.surely(t.Context(), i, apierrors.IsNotFound, func(c *door) error {
			return c.services.Delete(t.Context(), nameOf(i), metav1.DeleteOptions{})
		})
	})
	must.Do(t, err)
	must.Do(t, <-killed)
	must.Do(t, <-killed)
	for _, d := range s.doors { // the second one has read all from etcd since
		t.Run(d.Part.Name()+" routes what there is", func(t *testing.T) {
			for i := range n {
				want := http.StatusOK
				if doomed(i) {
					want = http.StatusNotFound
				}
				d.becomes(t, things(nameOf(i)), want)
			}
		})
	}
}

func doomed(i int) bool { return i%3 == 0 }

// surely repeats a write until a door acknowledges it, or says that it was done, if an answer was lost.
func (s *site) surely(ctx context.Context, i int, done func(error) bool, write func(*door) error) (err error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); i++ {
		if err = write(s.doors[i%len(s.doors)]); err == nil || done(err) {
			return nil
		}
		pause(ctx, 50*time.Millisecond) // like a client that retries
	}
	return fmt.Errorf("no door acknowledged the write: %w", err)
}

// killLeader kills etcd's leader, and restarts it after the next election.
func (s *site) killLeader(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); pause(ctx, 100*time.Millisecond) {
		for i, url := range s.EtcdURLs() { // on a busy machine another may be elected between two of them
			status, err := s.kv.Status(ctx, url)
			if err != nil {
				return err
			}
			if status.Leader != status.Header.MemberId {
				continue
			}
			s.Members[i].Kill()
			pause(ctx, 3*time.Second) // an election takes one or two
			return s.Members[i].Restart(ctx)
		}
	}
	return fmt.Errorf("no member leads")
}

// routed makes an APIService and waits until all doors route it.
func (s *site) routed(t *testing.T) {
	t.Helper()
	must.Get(s.doors[0].services.Create(t.Context(), s.remote(widgetsAPI, s.extension(t, "widgets.example.com/v1")), metav1.CreateOptions{}))(t)
	s.become(t, widgets, http.StatusOK)
}

func late() string { return manifest("v1.late.example.com", "", "") }

// refuses requires that requests that need etcd are soon answered with 503 and, unless etcd may have
// got a write, Retry-After, and that what is routed stays routed.
func (d *door) refuses(t *testing.T) {
	t.Helper()
	for _, r := range []struct{ method, path, body string }{
		{http.MethodPost, base, late()}, {http.MethodDelete, base + "/" + widgetsAPI, ""}, {http.MethodGet, base, ""},
	} {
		begun := time.Now()
		res := d.ask(t, r.method, r.path, r.body)
		if took := time.Since(begun); took > 15*time.Second { // 3 × 5 s, because the machine is busy
			t.Errorf("%s after %s", r.method, took)
		}
		told := r.method == http.MethodPost || res.Header.Get("Retry-After") != ""
		if res.Code != http.StatusServiceUnavailable || !told || !strings.Contains(res.Body, `"kind":"Status"`) {
			t.Errorf("%s: %d %v %s", r.method, res.Code, res.Header, res.Body)
		}
	}
	for _, path := range []string{widgets, "/livez", "/readyz"} {
		if res := d.ask(t, http.MethodGet, path, ""); res.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, res.Code, res.Body)
		}
	}
}

// testStopped stops etcd's process and continues it.
func testStopped(t *testing.T, w *world) {
	s := w.site(t, 1, cluster.Config{})
	s.routed(t)
	must.Do(t, s.Etcd.Signal(syscall.SIGSTOP))
	s.doors[0].refuses(t)
	if _, err := s.doors[0].services.Get(t.Context(), widgetsAPI, metav1.GetOptions{ResourceVersion: "0"}); err != nil {
		t.Errorf("a read that may be old: %v", err)
	}
	must.Do(t, s.Etcd.Signal(syscall.SIGCONT))
	s.accepts(t, "v1.back.example.com")
}

// testFull fills etcd until it refuses to write.
func testFull(t *testing.T, w *world) {
	s := w.site(t, 1, cluster.Config{EtcdArgs: []string{"--quota-backend-bytes=4194304"}})
	s.routed(t)
	garbage := strings.Repeat("x", 256<<10)
	var revision int64
	suite.Eventually(t, time.Minute, "full", func() (bool, string) {
		res, err := s.kv.Put(t.Context(), "garbage", garbage)
		if err == nil {
			revision = res.Header.Revision
		}
		return err != nil, "not yet"
	})
	res := s.doors[0].ask(t, http.MethodPost, base, late())
	if res.Code != http.StatusServiceUnavailable || res.Header.Get("Retry-After") != "" || !strings.Contains(res.Body, "takes no writes") {
		t.Errorf("%d %v %s", res.Code, res.Header, res.Body)
	}
	s.doors[0].becomes(t, widgets, http.StatusOK)
	must.Get(s.kv.Compact(t.Context(), revision))(t)
	must.Get(s.kv.Defragment(t.Context(), s.EtcdURLs()[0]))(t)
	must.Get(s.kv.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}))(t)
	s.accepts(t, "v1.back.example.com")
}

// testRestart restarts Fairleads while etcd is down, with and without a registry cache file. Then
// etcd comes back empty, like a restored old backup: its revision goes back.
func testRestart(t *testing.T, w *world) {
	s := w.site(t, 0, cluster.Config{})
	file := filepath.Join(t.TempDir(), "registry")
	with, without := s.open(t, s.Registry(), "--registry-cache-file="+file), s.open(t, s.Registry())
	s.routed(t)
	suite.Eventually(t, time.Minute, "the file is written", func() (bool, string) {
		data, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(data), widgetsAPI), fmt.Sprint(err)
	})
	for range 20 { // so that the writes at the end do not reach this revision
		must.Get(s.kv.Put(t.Context(), "noise", "x"))(t)
	}
	s.Etcd.Kill()
	t.Run("with the file", func(t *testing.T) {
		must.Do(t, with.Part.Restart(t.Context()))
		with.becomes(t, widgets, http.StatusOK)
		with.refuses(t)
	})
	t.Run("without the file", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // twice as long as with the file
		defer cancel()
		if err := without.Part.Restart(ctx); err == nil || !strings.Contains(err.Error(), "waiting for "+without.Part.Name()) {
			t.Errorf("restarted without the file: error %v, want that it does not become ready", err)
		}
	})
	must.Do(t, os.RemoveAll(filepath.Join(s.Dir(), "data-etcd")))
	must.Do(t, s.Etcd.Restart(t.Context()))
	must.Do(t, without.Part.Restart(t.Context()))
	t.Run("restored", func(t *testing.T) {
		s.become(t, widgets, http.StatusNotFound)
		s.accepts(t, "v1.back.example.com")
	})
}
