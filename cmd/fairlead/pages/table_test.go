package pages

import (
	"cmp"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func (s *stand) write(t *testing.T, file, text string) {
	t.Helper()
	temporary := filepath.Join(s.dir, "."+file)
	must.Do(t, os.WriteFile(temporary, []byte(text), 0o600))
	must.Do(t, os.Rename(temporary, filepath.Join(s.dir, file)))
}

// start runs everything, then reports health as a prober would.
func (s *stand) start(t *testing.T) {
	t.Helper()
	must.Run(t, s.registry.Run)
	must.Run(t, s.Run)
	s.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := &user.DefaultInfo{Name: cmp.Or(r.Header.Get("Test-User"), "alice"), UID: "7", Groups: []string{"people"}}
		s.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), u)))
	}))
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	s.await(t, func(t *registry.Table) bool { return t.Complete() && remotes(t) == 4 })
	for group, why := range map[string]string{"good.example.com": "", "bad.example.com": "failing or missing response from https://127.0.0.7:8443/apis/bad.example.com/v1: bad status from https://127.0.0.7:8443/apis/bad.example.com/v1: 403", "closed.example.com": ""} {
		e := s.registry.Table().Entry(schema.GroupVersion{Group: group, Version: "v1"})
		report := registry.Report{Name: e.Name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: registry.Healthy}
		if why != "" {
			report.Health, report.Reason, report.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, why
		}
		s.registry.Report(report)
	}
	s.await(t, func(t *registry.Table) bool {
		for _, e := range t.Entries() {
			if !e.Local() && e.Verdict.Status == "" {
				return false
			}
		}
		return true
	})
}

func remotes(t *registry.Table) int {
	n := 0
	for _, e := range t.Entries() {
		if !e.Local() {
			n++
		}
	}
	return n
}

// await waits until ok accepts the table.
func (s *stand) await(t *testing.T, ok func(*registry.Table) bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		table := s.registry.Table()
		if ok(table) {
			return
		}
		select {
		case <-table.Superseded():
		case <-deadline:
			t.Fatal("the expected table did not appear")
		}
	}
}

func (s *stand) get(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	resp := must.Get(s.http.Client().Get(s.http.URL + path))(t)
	defer resp.Body.Close()
	body := must.Get(io.ReadAll(resp.Body))(t)
	return resp, string(body)
}

// says checks that a text contains wants.
func says(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}
