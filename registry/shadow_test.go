package registry

import (
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A failure to read definitions is reported once, and again only after a success.
func TestShadowFails(t *testing.T) {
	status := 0
	var logged strings.Builder
	client := &http.Client{Transport: promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) { return answer(r, status, "{}"), nil })}
	core := must.Get(corev1.NewForConfigAndClient(&rest.Config{Host: "http://localhost", QPS: -1}, client))(t)
	s := shadows{of: &Registry{changes: newChanges(), log: slog.New(slog.NewTextHandler(&logged, nil))}, client: core.RESTClient()}
	for i, step := range []struct{ status, reported int }{{http.StatusForbidden, 1}, {http.StatusForbidden, 1}, {http.StatusOK, 1}, {http.StatusForbidden, 2}} {
		status = step.status
		ok, reported := s.ask(t.Context(), []schema.GroupVersion{{Group: "sea.io", Version: "v1"}}), strings.Count(logged.String(), "level=WARN")
		check.Same(t, true, ok == (status == http.StatusOK) && reported == step.reported, "step %d: %v, reported %d times, want %d", i, ok, reported, step.reported)
	}
}

// Only a change of what remotes claim is a reason to ask before shadowInterval is over.
func TestClaims(t *testing.T) {
	remote, local := &Entry{Backend: &Backend{}}, &Entry{}
	for _, tc := range []struct {
		old, now *Entry
		want     bool
	}{{nil, remote, true}, {remote, nil, true}, {remote, local, true}, {local, remote, true}, {remote, &Entry{Backend: &Backend{}}, false}, {local, local, false}} {
		check.Same(t, tc.want, tc.now.Moved(tc.old), "%v → %v", tc.old, tc.now)
	}
}

// failing fails a test by what is written.
type failing struct{ testing.TB }

func (f failing) Write(b []byte) (int, error) {
	f.Errorf("%s", b)
	return len(b), nil
}

func answer(r *http.Request, code int, body string) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
}

// Tables follow each other with every verdict. Definitions are read when the claims have changed,
// and otherwise once in shadowInterval.
func TestShadowInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		client := &http.Client{Transport: promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			return answer(r, http.StatusOK, `{"items":[]}`), nil
		})}
		core := must.Get(corev1.NewForConfigAndClient(&rest.Config{Host: "http://localhost"}, client))(t)
		in := Input{APIServices: map[string]*apiregistrationv1.APIService{"v1.sea.io": remoteService("sea.io", "v1", "fleet")}, Options: &Options{}, Complete: true}
		r := &Registry{changes: newChanges(), log: slog.New(slog.NewTextHandler(failing{t}, nil))}
		r.table.Store(Build(in, nil))
		next := func() {
			last := r.Table()
			r.table.Store(Build(in, nil))
			close(last.superseded)
		}
		s := shadows{of: r, client: core.RESTClient()}
		must.Run(t, s.run)
		for range 60 {
			time.Sleep(10 * time.Second)
			next()
		}
		synctest.Wait()
		before := asked.Load()
		check.Same(t, true, before >= 10 && before <= 11, "read %d times in ten minutes without a change of claims", before)
		in.APIServices = map[string]*apiregistrationv1.APIService{"v1.air.io": remoteService("air.io", "v1", "fleet")}
		next()
		time.Sleep(2 * shadowPause)
		synctest.Wait()
		check.Same(t, 1, asked.Load()-before, "reads after a change of claims")
	})
}

// While the log is blocked, what etcd has is taken all the same.
func TestRecallWhileTheLogIsBlocked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cache.json")
	synctest.Test(t, func(t *testing.T) {
		read, log := io.Pipe()
		defer read.Close()
		m := &remembered{path: file, log: slog.New(slog.NewTextHandler(log, nil))}
		must.Do(t, m.write([]*Entry{{Object: stored("a.io", "one")}}))
		go m.recall(t.Context(), newRegistry(Config{}, nil).changes)
		time.Sleep(recallAfter)
		synctest.Wait()
		check.Same(t, true, m.mu.TryLock(), "the mutex is free for what etcd has")
	})
}
