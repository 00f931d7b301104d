//go:build e2e

package etcd

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// routed makes an APIService and waits until all doors route it.
func (s *site) routed(t *testing.T) {
	t.Helper()
	must.Get(s.doors[0].services.Create(t.Context(), s.remote(widgetsAPI, s.extension(t, "widgets.example.com/v1")), metav1.CreateOptions{}))(t)
	s.become(t, widgets, http.StatusOK)
}

// late is an APIService.
func late() string { return manifest("v1.late.example.com", "", "") }

// refuses requires that requests that need etcd are soon answered with 503 and Retry-After, and
// that what is routed stays routed.
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
		if res.Code != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(res.Body, `"kind":"Status"`) {
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
	suite.Eventually(t, 30*time.Second, "full", func() (bool, string) {
		res, err := s.kv.Put(t.Context(), "garbage", garbage)
		if err == nil {
			revision = res.Header.Revision
		}
		return err != nil, "not yet"
	})
	res := s.doors[0].ask(t, http.MethodPost, base, late())
	if res.Code != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(res.Body, "takes no writes") {
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
	suite.Eventually(t, 30*time.Second, "the file is written", func() (bool, string) {
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
