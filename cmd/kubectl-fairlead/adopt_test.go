package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// moved is a cluster with one APIService.
type moved struct {
	mu     sync.Mutex
	object string
	wrote  func(n int) error // called after the nth PATCH; its error is the answer, though the change is made
	// serves says whether the group-version answers.
	serves func(a *apiregistrationv1.APIService) bool
	writes int
	front  bool // it is asked through Fairlead
}

func (c *moved) apiService() *apiregistrationv1.APIService {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &apiregistrationv1.APIService{}
	_ = json.Unmarshal([]byte(c.object), a)
	return a
}

// RoundTrip implements http.RoundTripper.
func (c *moved) RoundTrip(r *http.Request) (*http.Response, error) {
	code, body := http.StatusOK, ""
	switch path := r.URL.Path; {
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	case strings.HasSuffix(path, "/endpointslices"):
		body = `{"items":[{"endpoints":[{"addresses":["10.0.0.1"]}]}]}`
	case path == "/fairlead/status":
		code, body = map[bool]int{true: http.StatusOK, false: http.StatusNotFound}[c.front], "{}"
	case path == "/apis/g.example.com/v1":
		if code = http.StatusServiceUnavailable; c.serves == nil || c.serves(c.apiService()) {
			code, body = http.StatusOK, `{"kind":"APIResourceList","apiVersion":"v1"}`
		}
	case r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") == "":
		patch, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		next, err := jsonpatch.MergePatch([]byte(c.object), patch)
		if err == nil {
			c.object = string(next)
		}
		c.writes++
		n := c.writes
		c.mu.Unlock()
		if c.wrote != nil && err == nil {
			err = c.wrote(n)
		}
		if err != nil {
			return nil, err
		}
		body = c.object
	default:
		body = c.object
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if code == http.StatusServiceUnavailable {
		header.Set("Retry-After", "1") // as Fairlead's, when it cannot reach an endpoint
	}
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// move runs a command, and returns what it prints.
func (c *moved) move(t *testing.T, service string, change change, options ...func(*mover)) (string, error) {
	t.Helper()
	var out strings.Builder
	core := must.Get(corev1client.NewForConfigAndClient(&rest.Config{Host: "https://cluster"}, &http.Client{Transport: c}))(t)
	m := &mover{
		client: &client{out: &out, base: &url.URL{Scheme: "https", Host: "cluster"}, http: &http.Client{Transport: c}, apiserver: core.RESTClient()},
		own:    must.Get(behind.Parse(service))(t), caFile: filepath.Join(t.TempDir(), "ca.crt"), patience: time.Minute,
	}
	must.Do(t, os.WriteFile(m.caFile, ownBundle, 0o600))
	for _, o := range options {
		o(m)
	}
	err := m.move(t.Context(), "v1.g.example.com", change)
	return out.String(), err
}

var ownBundle = pki.NewCA("fairlead-ca").PEM()

const (
	own      = "kube-system/fairlead:443"
	original = `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.g.example.com","uid":"1","annotations":{"theirs":"kept"}},` +
		`"spec":{"group":"g.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"caBundle":"QQ==","service":{"namespace":"real","name":"api","port":443}}}`
)

// says checks where an APIService leads: its spec, its CA, and the annotation.
func (c *moved) says(t *testing.T, service, ca, noted string) {
	t.Helper()
	a := c.apiService()
	got := [4]string{behind.Format(a.Spec.Service), string(a.Spec.CABundle), a.Annotations[behind.Service], a.Annotations["theirs"]}
	check.Same(t, [4]string{service, ca, noted, "kept"}, got, "service, bundle and annotations")
}

// Where the extension server is stays known, whatever Service the command is given.
func TestMoveByAnotherName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &moved{object: original}
		check.Has(t, must.Get(c.move(t, own, (*mover).adopt, func(m *mover) { m.dryRun = true }))(t), "would be changed (dry run): the cluster would ask "+own+"\n")
		c.says(t, "real/api:443", "A", "")
		must.Get(c.move(t, own, (*mover).adopt))(t)
		c.says(t, own, string(ownBundle), "real/api:443")
		for name, change := range map[string]change{"adopt": (*mover).adopt, "release": (*mover).release} {
			_, err := c.move(t, "elsewhere/fairlead:443", change)
			check.Fault(t, "which is neither elsewhere/fairlead:443 (--service) nor", err, "%s", name)
			c.says(t, own, string(ownBundle), "real/api:443")
		}
		must.Get(c.move(t, own, (*mover).release))(t)
		c.says(t, "real/api:443", "A", "")
		c.object = strings.Replace(original, `"api"`, `"\u001b[2J"`, 1) // which the API allows
		said := must.Get(c.move(t, own, (*mover).release))(t)
		check.Same(t, false, strings.Contains(said, "\x1b"), "a terminal is controlled by %q", said)
	})
}

// A change that does not hold is undone, however short --wait is, and whichever write fails.
func TestMoveUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost, asked := errors.New("connection reset"), 0
		for name, tt := range map[string]struct {
			c    *moved
			wait time.Duration
		}{
			"never available":  {&moved{serves: func(a *apiregistrationv1.APIService) bool { return a.Spec.Service.Name == "api" }}, time.Minute},
			"every other time": {&moved{serves: func(*apiregistrationv1.APIService) bool { asked++; return asked%2 == 0 }}, time.Minute},
			"too short":        {&moved{}, 3 * time.Second},
			"the answer is lost": {&moved{wrote: func(n int) error { // as while kube-apiserver restarts
				return map[int]error{2: lost, 3: lost}[n]
			}}, time.Minute},
		} {
			tt.c.object = original
			_, err := tt.c.move(t, own, (*mover).adopt, func(m *mover) { m.patience = tt.wait })
			check.Fault(t, "the change was undone", err, "%s", name)
			tt.c.says(t, "real/api:443", "A", "")
		}
		c := &moved{object: original}
		must.Get(c.move(t, own, (*mover).adopt))(t)
		adopted, writes := c.object, c.writes
		c.wrote = func(int) error { // as without the right to patch
			c.mu.Lock()
			defer c.mu.Unlock()
			c.object = adopted
			return errors.New("forbidden")
		}
		_, err := c.move(t, own, (*mover).release)
		check.Fault(t, "forbidden; the change was undone", err, "a write that is refused")
		check.Same(t, writes+1, c.writes, "writes")
	})
}

// Without --wait nothing is undone: that is how one leaves where the cluster reaches no extension server.
func TestMoveWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &moved{object: original, serves: func(*apiregistrationv1.APIService) bool { return false }}
		for _, change := range []change{(*mover).adopt, (*mover).release} {
			must.Get(c.move(t, own, change, func(m *mover) { m.patience = 0 }))(t)
		}
		c.says(t, "real/api:443", "A", "")
	})
}

// A CA that another hand sets while the command runs is kept, and said; the cluster never stays where it does not fit.
func TestMoveBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &moved{object: original}
		must.Get(c.move(t, own, (*mover).adopt))(t)
		adopted, front, insecure := c.object, string(ownBundle), strings.Replace(original, `"caBundle":"QQ=="`, `"insecureSkipTLSVerify":true`, 1)
		down := strings.Replace(original, `"spec"`, `"status":{"conditions":[{"type":"Available","status":"False","reason":"R"}]},"spec"`, 1)
		for _, tt := range []struct {
			change                     change
			object, sets               string
			at                         int // the write after which it is set
			service, noted, fault, why string
		}{
			{(*mover).adopt, original, "B", 1, "real/api:443", "real/api:443", "somebody else has changed it meanwhile", "before the spec is written"},
			{(*mover).adopt, original, "B", 2, "real/api:443", "", "the change was undone", "as a cainjector of the extension server's"},
			{(*mover).adopt, down, "B", 2, "real/api:443", "", "run the command again; the change was undone", "of one that was not available"},
			{(*mover).adopt, insecure, "B", 2, "real/api:443", "", "the change was undone", "one that could not be set before"},
			{(*mover).release, adopted, front, 1, own, "real/api:443", "the change was undone", "as a cainjector of Fairlead's"},
			{(*mover).release, adopted, "B", 1, "real/api:443", "real/api:443", "undoing the change failed, too: somebody else", "the extension server's, which is not Fairlead's"},
		} {
			c := &moved{object: tt.object}
			c.wrote = func(n int) error {
				c.mu.Lock()
				defer c.mu.Unlock()
				if n == tt.at {
					patch := must.Get(json.Marshal(map[string]any{"spec": map[string]any{"caBundle": []byte(tt.sets)}}))(t)
					c.object = string(must.Get(jsonpatch.MergePatch([]byte(c.object), patch))(t))
				}
				return nil
			}
			begun := time.Now()
			_, err := c.move(t, own, tt.change)
			check.Fault(t, tt.fault, err, "%s", tt.why)
			if tt.object == insecure {
				tt.sets = "" // which the server refuses beside insecureSkipTLSVerify
			}
			c.says(t, tt.service, tt.sets, tt.noted)
			check.Same(t, true, time.Since(begun) < 5*time.Second, "it waits with the wrong CA: %s", tt.why)
		}
	})
}

// What a chart has set back, with another trust, is adopted with that one, and Fairlead's own CA may be another.
func TestAdoptAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &moved{object: original}
		must.Get(c.move(t, own, (*mover).adopt))(t)
		c.object = string(must.Get(jsonpatch.MergePatch([]byte(c.object), []byte(`{"spec":{"service":{"namespace":"real","name":"api","port":443},"caBundle":null,"insecureSkipTLSVerify":true}}`)))(t))
		must.Get(c.move(t, own, (*mover).adopt))(t)
		must.Get(c.move(t, own, (*mover).adopt, func(m *mover) { // which says nothing that is not true
			m.caFile += "2"
			must.Do(t, os.WriteFile(m.caFile, append(pki.NewCA("fairlead-ca-2").PEM(), ownBundle...), 0o600))
		}))(t)
		check.Same(t, true, len(c.apiService().Spec.CABundle) > len(ownBundle), "the cluster verifies Fairlead by more than one CA: %s", c.apiService().Spec.CABundle)
		must.Get(c.move(t, own, (*mover).release))(t)
		c.says(t, "real/api:443", "", "")
		check.Same(t, true, c.apiService().Spec.InsecureSkipTLSVerify, "not verified, as before")
	})
}

// Through Fairlead, whose own route does not show what the cluster's aggregator reaches, nothing that is waited for is
// moved.
func TestMoveThroughFairlead(t *testing.T) {
	c := &moved{object: original, front: true}
	for name, change := range map[string]change{"adopt": (*mover).adopt, "release": (*mover).release} {
		_, err := c.move(t, own, change)
		check.Fault(t, "this server is Fairlead", err, "%s", name)
	}
	check.Same(t, 0, c.writes, "writes")
	must.Get(c.move(t, own, (*mover).adopt, func(m *mover) { m.dryRun = true }))(t)
}

// What leads to Fairlead and does not say where its extension server is can be neither adopted nor released.
func TestMoveToNowhere(t *testing.T) {
	c := &moved{object: strings.Replace(original, `"namespace":"real","name":"api"`, `"namespace":"kube-system","name":"fairlead"`, 1)}
	for name, change := range map[string]change{"adopt": (*mover).adopt, "release": (*mover).release} {
		_, err := c.move(t, own, change)
		check.Fault(t, "annotation fairlead.dev/service", err, "%s", name)
	}
	check.Same(t, 0, c.writes, "writes")
}
