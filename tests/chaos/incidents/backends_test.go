//go:build e2e

package incidents

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

func backends() []row {
	return []row{
		{name: "wrong caBundle", want: `v1\.mistrusted\.example\.com.*until \d\d:\d\d`, then: `v1\.mistrusted\.example\.com .*False`, alerts: "FairleadBackendErrors", set: mistrusted},
		{
			name: "one user holds the limit", want: `greedy`, alerts: "FairleadSaturated", set: held,
			more: map[string]string{"explain " + widgets("held"): "greedy"},
		},
		{
			name: "expired certificate presented", want: `v1\.expired\.example\.com .*expired`, alerts: "FairleadBackendErrors", set: faulty("expired", extension.Expired),
			more: map[string]string{"explain v1.expired.example.com": "has expired: renew it"},
		},
		{
			name: "its requests get 500", want: `^Users are served, but v1\.failing\.example\.com: \d+% of its requests`, alerts: "FairleadBackendErrors", set: failing,
			more: map[string]string{"explain v1.failing.example.com": "500: see the log of the backend"},
		},
		{
			name: "one of two endpoints dead", want: `10\.79\.0\.12|explain v1\.halved`, alerts: "FairleadEndpointDown", set: halved,
			more: map[string]string{"explain v1.halved.example.com": `10\.79\.0\.12:8443.*refused`},
		},
		{
			name: "two URLs of different servers", want: `explain v1\.differing`, alerts: "", set: differing,
			more: map[string]string{"explain v1.differing.example.com": "its URLs lead to different servers.*404"},
		},
	}
}

func inLong() time.Time { return time.Now().Add(long) }

func faulty(name string, kind extension.Kind) func(*testing.T, *world) *incident {
	return func(t *testing.T, w *world) *incident {
		s := w.extension(t, name, "")
		f, _ := w.registered(t, name, "", s.URL())
		return &incident{
			fronts: []*cluster.Front{f}, paths: []string{widgets(name)},
			start: func(t *testing.T) {
				// Its connections end, as when the process with the new certificate starts.
				must.Do(t, s.Set(extension.Fault{Kind: extension.Dead}))
				must.Do(t, s.Set(extension.Fault{Kind: kind}))
			},
			mend: func(t *testing.T) { must.Do(t, s.Set()) },
		}
	}
}

// failing fails requests, and passes probes.
func failing(t *testing.T, w *world) *incident {
	s := w.extension(t, "failing", "")
	f, _ := w.registered(t, "failing", "", s.URL())
	return &incident{
		fronts: []*cluster.Front{f}, paths: []string{widgets("failing")},
		start: func(t *testing.T) {
			must.Do(t, s.Set(extension.Fault{Kind: extension.Status, Path: widgets("failing")}))
		}, mend: func(t *testing.T) { must.Do(t, s.Set()) },
	}
}

func mistrusted(t *testing.T, w *world) *incident {
	s, other := w.extension(t, "mistrusted", ""), pki.NewCA("other-ca")
	f, put := w.registered(t, "mistrusted", "", s.URL())
	return &incident{
		fronts: []*cluster.Front{f}, paths: []string{widgets("mistrusted")},
		start: func(*testing.T) { put(other, s.URL()) }, mend: func(*testing.T) { put(w.ca, s.URL()) },
	}
}

// held lets a user hold all but one of the places.
func held(t *testing.T, w *world) *incident {
	s := w.extension(t, "held", "")
	f, _ := w.registered(t, "held", `, fairlead.dev/max-inflight: "20"`, s.URL())
	greedy := cluster.Credentials{Pair: must.Get(w.PKI.Client.Issue("greedy", cluster.Leaf{User: "greedy", Groups: []string{"system:masters"}}))(t)}
	slow := f.Endpoint.URL + "/apis/held.example.com/v1/namespaces/slow/widgets"
	must.Do(t, s.Set(extension.Fault{Kind: extension.Slow, Delay: 2 * time.Second, Path: "/apis/held.example.com/v1/namespaces/slow/"}))
	client := suite.Client(t, f.Endpoint, greedy)
	load := &volley.Load{Every: 50 * time.Millisecond, Clients: []*http.Client{client}, Make: func(int) (method, url, body string) { return http.MethodGet, slow, "" }}
	return &incident{
		fronts: []*cluster.Front{f}, paths: []string{widgets("held")},
		start: func(t *testing.T) { load.Start(t) }, mend: func(*testing.T) { load.Stop() },
	}
}

func halved(t *testing.T, w *world) *incident {
	first, second := w.extension(t, "halved", "10.79.0.11:8443"), w.extension(t, "halved", "10.79.0.12:8443")
	f, _ := w.registered(t, "halved", "", first.URL(), second.URL())
	return &incident{
		fronts: []*cluster.Front{f}, paths: []string{widgets("halved")},
		start: func(t *testing.T) { must.Do(t, second.Set(extension.Fault{Kind: extension.Dead})) }, mend: func(t *testing.T) { must.Do(t, second.Set()) },
	}
}

// differing adds a URL whose server has other resources of the group-version.
func differing(t *testing.T, w *world) *incident {
	right, wrong := w.extension(t, "differing", ""), w.extension(t, "differing", "", func(c *extension.Config) { c.Wrap = gadgetsOnly })
	f, put := w.registered(t, "differing", "", right.URL())
	return &incident{
		fronts: []*cluster.Front{f}, paths: []string{widgets("differing")},
		start: func(*testing.T) { put(w.ca, right.URL(), wrong.URL()) }, mend: func(*testing.T) { put(w.ca, right.URL()) },
	}
}

// gadgetsOnly replaces what a server serves.
func gadgetsOnly(http.Handler) http.Handler {
	const list = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"differing.example.com/v1","resources":[{"name":"gadgets","singularName":"gadget","namespaced":true,"kind":"Gadget","verbs":["list"]}]}`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/differing.example.com/v1" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, list)
	})
}

// extension starts an extension server of <name>.example.com/v1. An empty address is a free port.
func (w *world) extension(t *testing.T, name, address string, change ...func(*extension.Config)) *extension.Server {
	t.Helper()
	cfg := extension.Config{
		GroupVersions: []string{name + ".example.com/v1"}, Names: names(name), CA: w.ca, Address: address, Objects: 3,
		RequestHeaderCA: suite.Pool(t, w.PKI.FrontProxy.CertFile), AllowedNames: []string{"front-proxy-client"}, RejectWith: http.StatusUnauthorized,
	}
	for _, c := range change {
		c(&cfg)
	}
	s := extension.Start(t, cfg)
	s.SetPair(w.ca.Issue(pki.Leaf{CommonName: "extension", Names: append(names(name), "localhost", "127.0.0.1"), NotAfter: inLong()}))
	return s
}

func names(name string) []string {
	return []string{name + ".incidents.svc", name + ".example.com", "10.79.0.11", "10.79.0.12"}
}

// byURL is an APIService of a folder.
const byURL = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.%[1]s.example.com, annotations: {fairlead.dev/url: %[2]q%[4]s}}
spec: {group: %[1]s.example.com, version: v1, groupPriorityMinimum: 1000, versionPriority: 100, caBundle: %[3]s, service: {namespace: incidents, name: %[1]s}}
`

// registered starts a Fairlead with an APIService with URLs, in a folder of a row's own, so that no other row sees its
// faults. put replaces its CA and its URLs.
func (w *world) registered(t *testing.T, name, annotations string, urls ...string) (f *cluster.Front, put func(ca *pki.CA, urls ...string)) {
	t.Helper()
	folder := t.TempDir()
	put = func(ca *pki.CA, urls ...string) { register(t, folder, name, ca, annotations, urls...) }
	put(w.ca, urls...)
	return w.serve(t, name, "--registry=dir:"+folder+",kubernetes"), put
}

// register writes an APIService with URLs into a folder.
func register(t *testing.T, folder, name string, ca *pki.CA, annotations string, urls ...string) {
	t.Helper()
	suite.Put(t, filepath.Join(folder, name+".yaml"), fmt.Sprintf(byURL, name, strings.Join(urls, ","), base64.StdEncoding.EncodeToString(ca.PEM()), annotations))
}
