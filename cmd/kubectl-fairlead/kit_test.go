package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// front answers as a Fairlead does, and records the user of each request.
type front struct {
	*httptest.Server
	kubeconfig string
	statuses   chan *answer.Status // one for each request; the last one is repeated
	last       *answer.Status
	explained  []string // paths
	as         string
	crd        string // JSON; the CRD is named nodes.metrics.k8s.io
	slices     *discoveryv1.EndpointSliceList
}

func newFront(t *testing.T, list ...*answer.Status) *front {
	t.Helper()
	f := &front{statuses: make(chan *answer.Status, len(list))}
	for _, s := range list {
		f.statuses <- s
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/fairlead/status", func(w http.ResponseWriter, r *http.Request) {
		f.as = r.Header.Get("Impersonate-User")
		select {
		case f.last = <-f.statuses:
		default:
		}
		_ = json.NewEncoder(w).Encode(f.last)
	})
	mux.HandleFunc("/fairlead/explain", func(w http.ResponseWriter, r *http.Request) {
		f.explained = append(f.explained, r.URL.Query().Get("path"))
		if r.Header.Get("Impersonate-User") != "" {
			http.Error(w, "who is explained may not read this", http.StatusForbidden)
			return
		}
		x := &answer.Explanation{
			Method: r.URL.Query().Get("method"), Path: r.URL.Query().Get("path"), Verb: "list", Destination: "remote", Why: []string{"one", "two"}, APIService: &f.last.APIServices[0],
			Identity: &answer.Identity{User: "alice", How: "asserted", Headers: []string{"x-remote-user: alice"}}, Timeout: "request: 1m0s",
		}
		if strings.HasPrefix(x.Path, "/apis/dead") {
			x.Destination, x.Code, x.Message, x.Cause, x.Advice = "refused", 503, "unavailable", "the \x1b[31mcause", "look there"
		}
		if u := r.URL.Query().Get("user"); u != "" {
			x.Code, x.Authorization = 403, fmt.Sprintf("denied: %s of %s", u, r.URL.Query()["group"])
		}
		_ = json.NewEncoder(w).Encode(x)
	})
	mux.HandleFunc("/fairlead/events", func(w http.ResponseWriter, _ *http.Request) {
		for i := range cap(f.statuses) {
			fmt.Fprintf(w, "event: table\ndata: %d\n\n", i)
		}
	})
	mux.HandleFunc("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", f.serveSlices)
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	mux.HandleFunc(crds, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"items":[%s]}`, f.crd) })
	mux.HandleFunc(crds+"/nodes.metrics.k8s.io", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, f.crd) })
	discovery := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		}
	}
	mux.HandleFunc("/api", discovery(`{"kind":"APIVersions","versions":["v1"]}`))
	mux.HandleFunc("/api/v1", discovery(`{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list"]}]}`))
	mux.HandleFunc("/apis", discovery(`{"kind":"APIGroupList","groups":[{"name":"metrics.k8s.io","versions":[{"groupVersion":"metrics.k8s.io/v1beta1","version":"v1beta1"}]}]}`))
	mux.HandleFunc("/apis/metrics.k8s.io/v1beta1", discovery(`{"kind":"APIResourceList","groupVersion":"metrics.k8s.io/v1beta1","resources":[{"name":"nodes","kind":"NodeMetrics","verbs":["list"]}]}`))
	f.Server = httptest.NewTLSServer(mux)
	t.Cleanup(f.Close)
	f.kubeconfig = kubeconfig(t, f.Server)
	return f
}

func kubeconfig(t *testing.T, s *httptest.Server) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: s.URL, CertificateAuthorityData: ca}
	c.Contexts["c"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c"}, "c"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*c, file))
	return file
}

// run runs one command against f.
func (f *front) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs(append(args, "--kubeconfig", f.kubeconfig, "--cache-dir", t.TempDir()))
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
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
