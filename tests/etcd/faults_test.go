//go:build e2e

package etcd

import (
	"context"
	"encoding/json"
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
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/relay"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

func testFaults(t *testing.T, w *world) {
	suite.Cases[*world]{
		{"killed", func(t *testing.T, w *world) {
			testAway(t, w, (*cluster.Part).Kill, func(p *cluster.Part) error { return p.Restart(t.Context()) })
		}},
		{"stopped", func(t *testing.T, w *world) {
			testAway(t, w, func(p *cluster.Part) { must.Do(t, p.Signal(syscall.SIGSTOP)) }, func(p *cluster.Part) error { return p.Signal(syscall.SIGCONT) })
		}},
		{"slow", testSlow},
		{"compacted", testCompacted},
		{"full", testFull},
		{"corrupt", testCorrupt},
		{"restart", testRestart},
		{"restored", testRestored},
	}.Beside(t, w)
}

// routed makes an APIService and waits until all doors route it.
func (s *site) routed(t *testing.T) {
	t.Helper()
	must.Get(s.doors[0].services.Create(t.Context(), s.remote(widgetsAPI, s.extension(t, "widgets.example.com/v1")), metav1.CreateOptions{}))(t)
	for _, d := range s.doors {
		d.becomes(t, widgets, http.StatusOK)
	}
}

// refuses requires that writes are soon answered with 503 and Retry-After.
func (d *door) refuses(t *testing.T, name string) {
	t.Helper()
	data := must.Get(json.Marshal(local(name)))(t)
	for _, write := range []struct{ method, path, body string }{{http.MethodPost, base, string(data)}, {http.MethodDelete, base + "/v1.widgets.example.com", ""}} {
		begun := time.Now()
		res := d.ask(t, write.method, write.path, write.body)
		if took := time.Since(begun); took > 15*time.Second { // 3 × 5 s, because the machine is busy
			t.Errorf("%s after %s", write.method, took)
		}
		if res.Code != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(res.Body, `"kind":"Status"`) {
			t.Errorf("%s: %d %v %s", write.method, res.Code, res.Header, res.Body)
		}
	}
}

// accepts waits until a write is accepted again and routed.
func (s *site) accepts(t *testing.T, name string) {
	t.Helper()
	server := s.everything(t)
	suite.Eventually(t, 40*time.Second, "a write is accepted", func() (bool, string) {
		_, err := s.doors[0].services.Create(t.Context(), s.remote(name, server), metav1.CreateOptions{})
		return err == nil, fmt.Sprint(err)
	})
	version, group, _ := strings.Cut(name, ".")
	for _, d := range s.doors {
		d.becomes(t, "/apis/"+group+"/"+version+"/things", http.StatusOK)
	}
}

// testAway stops etcd and resumes it.
func testAway(t *testing.T, w *world, stop func(*cluster.Part), again func(*cluster.Part) error) {
	s := w.site(t, 1, cluster.Config{})
	s.routed(t)
	d := s.doors[0]
	before := must.Get(d.services.List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}))(t)
	stop(s.Etcd)
	t.Run("writes", func(t *testing.T) { d.refuses(t, "v1.late.example.com") })
	t.Run("what is routed stays routed", func(t *testing.T) {
		d.answers(t, widgets, http.StatusOK)
	})
	t.Run("reads that may be old", func(t *testing.T) {
		now := must.Get(d.services.List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}))(t)
		if len(now.Items) != len(before.Items) {
			t.Errorf("%d APIServices, want %d", len(now.Items), len(before.Items))
		}
		if _, err := d.services.Get(t.Context(), widgetsAPI, metav1.GetOptions{ResourceVersion: "0"}); err != nil {
			t.Error(err)
		}
	})
	t.Run("reads that must be new", func(t *testing.T) {
		for _, path := range []string{base, base + "/" + widgetsAPI} {
			begun := time.Now()
			res := d.ask(t, http.MethodGet, path, "")
			if res.Code != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || time.Since(begun) > 15*time.Second {
				t.Errorf("%s: %d %v after %s: %s", path, res.Code, res.Header, time.Since(begun), res.Body)
			}
		}
	})
	t.Run("it is alive and ready", func(t *testing.T) {
		for _, path := range []string{"/livez", "/readyz"} {
			d.answers(t, path, http.StatusOK)
		}
	})
	must.Do(t, again(s.Etcd))
	t.Run("back again", func(t *testing.T) { s.accepts(t, "v1.back.example.com") })
}

// testSlow delays the traffic between Fairlead and etcd.
func testSlow(t *testing.T, w *world) {
	s := w.site(t, 0, cluster.Config{})
	etcd, registry := s.relayed(t)
	s.open(t, registry)
	s.routed(t)
	t.Run("a little", func(t *testing.T) {
		etcd.Delay(300 * time.Millisecond)
		s.accepts(t, "v1.slow.example.com")
	})
	t.Run("too much", func(t *testing.T) {
		etcd.Delay(20 * time.Second)
		s.doors[0].refuses(t, "v1.slower.example.com")
		s.doors[0].answers(t, widgets, http.StatusOK)
	})
	t.Run("quick again", func(t *testing.T) {
		etcd.Delay(0)
		etcd.Cut()
		s.accepts(t, "v1.quick.example.com")
	})
}

// testCompacted lets a Fairlead miss changes that etcd then compacts.
func testCompacted(t *testing.T, w *world) {
	s := w.site(t, 0, cluster.Config{})
	etcd, registry := s.relayed(t)
	cutOff := s.open(t, registry)
	other := s.open(t, s.Registry())
	s.routed(t)
	etcd.Close(true)
	server := s.everything(t)
	must.Get(other.services.Create(t.Context(), s.remote("v1.new.example.com", server), metav1.CreateOptions{}))(t)
	must.Do(t, other.services.Delete(t.Context(), widgetsAPI, metav1.DeleteOptions{}))
	res := must.Get(s.kv.Put(t.Context(), "after", "all"))(t)
	must.Get(s.kv.Compact(t.Context(), res.Header.Revision))(t)
	t.Run("what it knows is routed", func(t *testing.T) {
		cutOff.answers(t, widgets, http.StatusOK)
	})
	etcd.Close(false)
	t.Run("what is new is routed", func(t *testing.T) { cutOff.becomes(t, "/apis/new.example.com/v1/things", http.StatusOK) })
	t.Run("what was deleted is not", func(t *testing.T) { cutOff.becomes(t, widgets, http.StatusNotFound) })
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
	t.Run("writes", func(t *testing.T) {
		data := must.Get(json.Marshal(local("v1.late.example.com")))(t)
		res := s.doors[0].ask(t, http.MethodPost, base, string(data))
		if res.Code != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(res.Body, "takes no writes") {
			t.Errorf("%d %v %s", res.Code, res.Header, res.Body)
		}
	})
	t.Run("the others go on", func(t *testing.T) {
		for _, path := range []string{widgets, base} {
			s.doors[0].answers(t, path, http.StatusOK)
		}
	})
	must.Get(s.kv.Compact(t.Context(), revision))(t)
	must.Get(s.kv.Defragment(t.Context(), s.EtcdURLs()[0]))(t)
	must.Get(s.kv.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}))(t)
	t.Run("there is room again", func(t *testing.T) { s.accepts(t, "v1.back.example.com") })
}

// testCorrupt stores a value that is not an APIService under an APIService's key.
func testCorrupt(t *testing.T, w *world) {
	s := w.site(t, 1, cluster.Config{})
	s.routed(t)
	const noise = "v1.noise.example.com"
	must.Get(s.kv.Put(t.Context(), keys+noise, "\x00\x01 noise"))(t)
	names := func(t *testing.T) {
		suite.Eventually(t, 20*time.Second, "it is named", func() (bool, string) {
			res := s.doors[len(s.doors)-1].ask(t, http.MethodGet, "/fairlead/status", "")
			return res.Code == http.StatusOK && strings.Contains(res.Body, noise), res.Body
		})
		s.kubectl(t, s.doors[len(s.doors)-1].Endpoint).run(t, 0, "", []string{"get", "apiservices"}, noise, "Corrupt", widgetsAPI)
	}
	t.Run("it is named", names)
	t.Run("in the log", func(t *testing.T) {
		suite.Eventually(t, 20*time.Second, "in the log", func() (bool, string) {
			log := must.Get(os.ReadFile(s.doors[0].Part.LogFile()))(t)
			return strings.Contains(string(log), noise), string(log)
		})
	})
	t.Run("the others go on", func(t *testing.T) { s.accepts(t, "v1.sound.example.com") })
	s.open(t, s.Registry())
	t.Run("for one that starts, too", func(t *testing.T) {
		names(t)
		s.doors[1].becomes(t, widgets, http.StatusOK)
	})
	t.Run("it can be deleted", func(t *testing.T) {
		must.Do(t, s.doors[1].services.Delete(t.Context(), noise, metav1.DeleteOptions{}))
		res, err := s.kv.Get(t.Context(), keys+noise)
		must.Do(t, err)
		if len(res.Kvs) != 0 {
			t.Errorf("the key still exists: %v", res.Kvs)
		}
	})
}

// testRestart restarts Fairleads while etcd is down, with and without a registry cache file.
func testRestart(t *testing.T, w *world) {
	s := w.site(t, 0, cluster.Config{})
	file := filepath.Join(t.TempDir(), "registry")
	with, without := s.open(t, s.Registry(), "--registry-cache-file="+file), s.open(t, s.Registry())
	s.routed(t)
	suite.Eventually(t, 30*time.Second, "the file is written", func() (bool, string) {
		data, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(data), widgetsAPI), fmt.Sprint(err)
	})
	s.Etcd.Kill()
	t.Run("with the file", func(t *testing.T) {
		must.Do(t, with.Part.Restart(t.Context()))
		with.becomes(t, widgets, http.StatusOK)
		with.refuses(t, "v1.late.example.com")
	})
	t.Run("without the file", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // twice as long as with the file
		defer cancel()
		if err := without.Part.Restart(ctx); err == nil || !strings.Contains(err.Error(), "waiting for "+without.Part.Name()) {
			t.Errorf("restarted without the file: error %v, want that it does not become ready", err)
		}
	})
	must.Do(t, s.Etcd.Restart(t.Context()))
	must.Do(t, without.Part.Restart(t.Context()))
	t.Run("back again", func(t *testing.T) { s.accepts(t, "v1.back.example.com") })
}

// relayed starts a relay in front of etcd, and returns the --registry that uses it.
func (s *site) relayed(t *testing.T) (*relay.Relay, string) {
	t.Helper()
	r := must.Get(relay.Start(t.Context(), strings.TrimPrefix(s.EtcdURLs()[0], "http://")))(t)
	return r, "etcd:http://" + r.Address
}
