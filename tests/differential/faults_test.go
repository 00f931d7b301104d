//go:build e2e

package differential

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// misdescribed is a group-version with a useless OpenAPI description.
type misdescribed struct {
	gv string
	// reasons are those that may be reported. How much of a body arrives before the timeout depends
	// on the machine.
	reasons []string
	// heal repairs the description.
	heal func()
	// noV2 means that the repaired backend has only OpenAPI v3.
	noV2 bool
}

func (m misdescribed) name() string {
	group, version, _ := strings.Cut(m.gv, "/")
	return version + "." + group
}

// misdescribe starts a backend for each kind of bad description. All serve objects and discovery
// correctly.
func (w *world) misdescribe(t *testing.T) []misdescribed {
	t.Helper()
	var out []misdescribed
	for name, c := range map[string]struct {
		fault   extension.Fault
		reasons []string
	}{
		"garbage":   {extension.Fault{Kind: extension.Garbage}, []string{"invalid"}},
		"huge":      {extension.Fault{Kind: extension.HugeBody}, []string{"too_large", "timeout"}},
		"hanging":   {extension.Fault{Kind: extension.Hang}, []string{"timeout"}},
		"stalling":  {extension.Fault{Kind: extension.HangBody}, []string{"timeout"}},
		"truncated": {extension.Fault{Kind: extension.ShortBody}, []string{"unreachable", "invalid"}},
		"reset":     {extension.Fault{Kind: extension.ResetBody}, []string{"unreachable"}},
		"refusing":  {extension.Fault{Kind: extension.Status}, []string{"status"}},
	} {
		gv := name + ".example.com/v1"
		s := extension.Start(t, extension.Config{Names: []string{name + ".backends.svc"}, GroupVersions: []string{gv}})
		c.fault.Path = "/openapi/"
		must.Do(t, s.Set(c.fault))
		w.register(t, name, s.Addr(), s.CA, map[string]priority{gv: {500, 10}})
		heal := func() {
			if err := s.Set(); err != nil {
				t.Error(err)
			}
		}
		out = append(out, misdescribed{gv: gv, reasons: c.reasons, heal: heal})
	}
	for name, h := range map[string]http.HandlerFunc{
		"bomb":      bomb(t),
		"recursive": recursive,
		"nonsense": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"swagger":[],"openapi":7,"paths":"none"}`)
		},
	} {
		s := w.script(t, name, name+".example.com", h, "things")
		out = append(out, misdescribed{gv: name + ".example.com/v1", reasons: []string{"invalid"}, heal: func() { s.describe(nil) }, noV2: true})
	}
	return out
}

// bomb serves a gigabyte in a megabyte of gzip.
func bomb(t *testing.T) http.HandlerFunc {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	chunk := bytes.Repeat([]byte(" "), 1<<20)
	for range 1 << 10 {
		must.Get(z.Write(chunk))(t)
	}
	must.Do(t, z.Close())
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(b.Bytes())
	}
}

// recursive serves a document on which kube-openapi's walker never terminates; it kills
// kube-apiserver.
func recursive(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/openapi/v2" {
		http.NotFound(w, r)
		return
	}
	_, _ = io.WriteString(w, `{"swagger":"2.0","info":{"title":"t","version":"v"},"paths":{"/apis/recursive.example.com/v1/x":{"parameters":[{"$ref":"#/parameters/p"}]}},"parameters":{"p":{"$ref":"#/parameters/p"}}}`)
}

// TestOpenAPIFaults serves every kind of bad description: each is left out of the documents and
// reported, and nothing else is affected.
func TestOpenAPIFaults(t *testing.T) {
	w := newWorld(t)
	w.extend(t, "widgets", extension.Config{}, map[string]priority{"widgets.example.com/v1": {900, 10}})
	bad := w.misdescribe(t)
	w.eachLane(t, func(t *testing.T, w *world) {
		w.leftOut(t, bad)
		// A gigabyte was offered three times, and twice by each of two backends. Memory must stay
		// bounded.
		if peak := peakMemory(t, w.front.Part.PID()); peak > 700 {
			t.Errorf("peak memory is %d MB", peak)
		} else {
			t.Logf("peak memory is %d MB", peak)
		}
	})
	for _, m := range bad {
		m.heal()
		w.lookAgain(t, m.name())
	}
	suite.Eventually(t, time.Minute, "all are described", func() (bool, string) {
		return w.described(t, bad, true)
	})

	// A good description stays in use while its backend serves a bad one.
	again := w.extend(t, "again", extension.Config{}, map[string]priority{"again.example.com/v1": {500, 10}})
	one := []misdescribed{{gv: "again.example.com/v1"}}
	suite.Eventually(t, time.Minute, "it is described", func() (bool, string) { return w.described(t, one, true) })
	must.Do(t, again.Set(extension.Fault{Kind: extension.Garbage, Path: "/openapi/"}))
	w.lookAgain(t, "v1.again.example.com")
	suite.Eventually(t, time.Minute, "it is reported", func() (bool, string) {
		reason := w.openAPIReasons(t)["v1.again.example.com"]
		return reason == "invalid", reason
	})
	if ok, got := w.described(t, one, true); !ok {
		t.Errorf("the good description is gone: %s", got)
	}
}

// peakMemory returns a process's peak memory in MB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	var kb int
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(after, &kb); err != nil {
		t.Fatalf("reading VmHWM: %v", err)
	}
	return kb >> 10
}

// lookAgain changes an APIService, like an operator who does not want to wait for the next poll.
func (w *world) lookAgain(t *testing.T, name string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/look-again":"%d"}}}`, time.Now().UnixNano())
	must.Get(w.services.ApiregistrationV1().APIServices().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}

// leftOut waits until all bad descriptions are reported, and checks meanwhile that nothing else is
// affected.
func (w *world) leftOut(t *testing.T, bad []misdescribed) {
	t.Helper()
	well := []misdescribed{{gv: "widgets.example.com/v1"}, {gv: "apps/v1"}}
	suite.Eventually(t, time.Minute, "the documents are there", func() (bool, string) { // Fairlead has just been started
		a, b := w.ask(t, w.front.Endpoint, "/openapi/v2", nil), w.ask(t, w.front.Endpoint, "/openapi/v3", nil)
		return a.Code == http.StatusOK && b.Code == http.StatusOK, a.Body + b.Body
	})
	suite.Eventually(t, time.Minute, "the others are described", func() (bool, string) { return w.described(t, well, true) })
	var slowest time.Duration
	suite.Eventually(t, 2*time.Minute, "all are reported", func() (bool, string) {
		for _, m := range bad {
			slowest = max(slowest, w.routes(t, m.gv))
		}
		if ok, got := w.described(t, well, true); !ok {
			t.Fatalf("the description of a healthy APIService is gone: %s", got)
		}
		if ok, got := w.described(t, bad, false); !ok {
			t.Fatalf("a bad description is served: %s", got)
		}
		reasons := w.openAPIReasons(t)
		for _, m := range bad {
			if !slices.Contains(m.reasons, reasons[m.name()]) {
				return false, fmt.Sprint(reasons)
			}
		}
		return reasons["v1.widgets.example.com"] == "", fmt.Sprint(reasons)
	})
	t.Logf("reported: %v; the slowest request to their objects took %s", w.openAPIReasons(t), slowest)
	metrics := w.admin(t, "/metrics")
	for _, m := range bad {
		if !strings.Contains(metrics, `fairlead_openapi_failing{name="`+m.name()+`",reason=`) {
			t.Errorf("no metric reports that %s is left out", m.gv)
		}
	}
}

func (w *world) routes(t *testing.T, gv string) time.Duration {
	t.Helper()
	begun := time.Now()
	path := "/apis/" + gv + "/namespaces/default/widgets?limit=1"
	if a := w.ask(t, w.front.Endpoint, path, nil); a.Code != http.StatusOK {
		t.Fatalf("%s: %d %.300s", path, a.Code, a.Body)
	}
	took := time.Since(begun)
	if took > 2*time.Second {
		t.Errorf("%s took %s", path, took)
	}
	return took
}

// described reports whether all group-versions are in the documents, or all are missing from them.
func (w *world) described(t *testing.T, list []misdescribed, want bool) (bool, string) {
	t.Helper()
	v2, v3 := w.ask(t, w.front.Endpoint, "/openapi/v2", nil), w.ask(t, w.front.Endpoint, "/openapi/v3", nil)
	if v2.Code != http.StatusOK || v3.Code != http.StatusOK {
		t.Fatalf("the documents answer %d and %d", v2.Code, v3.Code)
	}
	for _, m := range list {
		in2, in3 := strings.Contains(v2.Body, `"/apis/`+m.gv+"/"), strings.Contains(v3.Body, `"apis/`+m.gv+`"`)
		if in3 != want || in2 != want && (!want || !m.noV2) {
			return false, fmt.Sprintf("%s: in v2 %v, in v3 %v", m.gv, in2, in3)
		}
	}
	return true, ""
}

// openAPIReasons returns the reasons in Fairlead's status, by APIService.
func (w *world) openAPIReasons(t *testing.T) map[string]string {
	t.Helper()
	var status struct {
		APIServices []struct {
			Name    string
			OpenAPI *struct{ Reason string }
		}
	}
	must.Do(t, json.Unmarshal([]byte(w.admin(t, "/status")), &status))
	out := map[string]string{}
	for _, a := range status.APIServices {
		if a.OpenAPI != nil {
			out[a.Name] = a.OpenAPI.Reason
		}
	}
	return out
}

func (w *world) admin(t *testing.T, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	a := must.Get(ask.Do(ctx, w.clients[w.front.Endpoint.URL], http.MethodGet, w.front.Admin.URL+path, nil, ""))(t)
	if a.Code != http.StatusOK {
		t.Fatalf("%s: %d %.300s", path, a.Code, a.Body)
	}
	return a.Body
}
