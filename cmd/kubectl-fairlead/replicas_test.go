package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// lists makes f list the servers at these addresses as replicas, each in two EndpointSlices, as while one replaces the
// other: of several ports the one named admin counts, a single one needs no name.
func (f *front) lists(t *testing.T, addresses ...string) {
	t.Helper()
	var list discoveryv1.EndpointSliceList
	for _, a := range addresses {
		host, port := must.Get2(net.SplitHostPort(a))(t)
		n := int32(must.Get(strconv.Atoi(port))(t))
		at := []discoveryv1.Endpoint{{Addresses: []string{host}}}
		list.Items = append(list.Items, discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Port: &n}}, Endpoints: at},
			discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(1))}, {Name: new("admin"), Port: &n}}, Endpoints: at})
	}
	text := must.Get(json.Marshal(list))(t)
	f.answers["/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"] = []reply{{http.StatusOK, string(text)}}
}

func (f *front) address() string { return f.Listener.Addr().String() }

// Every replica is asked with the caller's credential; differences are shown per replica.
func TestReplicas(t *testing.T) {
	f, other, gone := newFront(t), newFront(t), newFront(t)
	f.answers["/fairlead/status"] = []reply{{http.StatusOK, `{"replica":"node-1","apiServices":[{"name":"v1.x","kind":"remote","verdict":{"status":"True","reason":"Passed"}},` +
		`{"name":"v1.apps","kind":"local","verdict":{"status":"True","reason":"Local"}}]}`}}
	other.answers["/fairlead/status"] = []reply{{http.StatusOK, `{"replica":"node-2","notReady":"table: not complete","apiServices":[{"name":"v1.x","kind":"remote","verdict":{"status":"False"}}]}`}}
	gone.Close()
	t.Setenv("KUBECONFIG", kubeconfig(t, f.Server))
	status := func(args ...string) string {
		out := run(t, "", append([]string{"status", "--replicas"}, args...)...)
		for name, server := range map[string]*front{"WELL": f, "ILL": other, "GONE": gone} {
			out = strings.ReplaceAll(out, server.address(), name)
		}
		return out
	}
	f.lists(t, f.address(), other.address(), gone.address())
	out := status("--as", "bob")
	check.Has(t, out, "node-1    WELL   True ", "   1/1", "node-2    ILL   False ", "   0/1", "GONE   Unknown ", "\nGONE: asking /fairlead/status: ", "\nILL is not ready: table: not complete\n",
		"v1.x is False at ILL; True Passed at WELL\n", "v1.apps is True Local at WELL; unknown to 1\n", "exit 3\n")
	const slices = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dfairlead-admin bob"
	check.Same(t, [][]string{{slices, "/fairlead/status bob"}, {"/fairlead/status bob"}}, [][]string{f.asked, other.asked}, "requests to the two")
	check.Same(t, [2]string{"kubectl-fairlead/devel", "kubectl-fairlead/devel"}, [2]string{f.agent, other.agent}, "user agents, by which rules and top know who asks")
	f.lists(t, f.address())
	check.Same(t, 2, strings.Count(status(), "\n"), "lines about a healthy replica")
	f.lists(t)
	check.Same(t, "exit 1: the Service kube-system/fairlead-admin, which lists the replicas, has no endpoints\n", status(), "without replicas")
}

// A replica that does not prove the kubeconfig's server name gets no request and no credential.
func TestReplicaOfAnother(t *testing.T) {
	f := newFront(t)
	stranger := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("it was asked for %s", r.URL) }))
	pair := pki.NewCA("another").Issue(pki.Leaf{CommonName: "fairlead", Names: []string{"127.0.0.1"}})
	stranger.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, MinVersion: tls.VersionTLS12}
	stranger.StartTLS()
	t.Cleanup(stranger.Close)
	f.lists(t, stranger.Listener.Addr().String())
	args := []string{"status", "--replicas", "--token", "secret", "--server", f.URL}
	t.Setenv("KUBECONFIG", kubeconfig(t, f.Server))
	if out := run(t, "", args...); !strings.Contains(out, "certificate") || !strings.HasSuffix(out, "exit 3\n") {
		t.Error(out)
	}
	if out := run(t, "", append(args, "--insecure-skip-tls-verify")...); !strings.HasPrefix(out, "exit 1: the kubeconfig verifies no server certificate") {
		t.Errorf("without verification: %s", out)
	}
}

// Only a terminal gets colours, which do not count as width.
func TestColour(t *testing.T) {
	f := must.Get(os.CreateTemp(t.TempDir(), ""))(t)
	defer f.Close()
	check.Same(t, true, !paletteFor(&bytes.Buffer{}).on && !paletteFor(f).on, "a pipe or a file gets colours")
	if pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0); err == nil { // a terminal
		defer pty.Close()
		t.Setenv("TERM", "xterm")
		for value, want := range map[string]bool{"": true, "1": false} {
			t.Setenv("NO_COLOR", value)
			check.Same(t, want, paletteFor(pty).on, "colours with NO_COLOR=%q", value)
		}
	}
	var out bytes.Buffer
	now, c := time.Now(), &client{palette: palette{on: true}}
	rows := [][]cell{{{"a", good}, {text: "b"}}, {{text: "long"}, {text: "c"}}}
	for _, left := range []time.Duration{5 * time.Hour, 100 * time.Hour, 1000 * time.Hour} { // as on the page
		rows = append(rows, []cell{expires(now, now.Add(left-time.Second)), {text: "d"}})
	}
	must.Do(t, c.palette.table(&out, rows))
	text := strings.NewReplacer("\x1b[39m", "", "\x1b[0m", "|").Replace(out.String())
	check.Same(t, "\x1b[32ma|      b|\nlong|   c|\n\x1b[31m4h|     d|\n\x1b[33m4d|     d|\n41d|    d|\n", text, "table")
}

// The rows of replicas are added up by caller, with the credential of the user. Who does not answer is named.
func TestTopOfReplicas(t *testing.T) {
	f, other, gone := newFront(t), newFront(t), newFront(t)
	const rows = `"rows":[{"user":"jane","requests":5,"out":1048576},{"user":"bob","requests":8}]}`
	f.answers["/fairlead/busiest"] = []reply{{http.StatusOK, `{"from":"2026-11-21T11:59:00Z","to":"2026-11-21T12:00:00Z","total":{"requests":20,"out":1048576},` + rows}}
	other.answers["/fairlead/busiest"] = []reply{{http.StatusOK, `{"from":"2026-11-21T11:59:10Z","to":"2026-11-21T12:00:01Z","total":{"requests":20,"out":1048576},` + strings.ReplaceAll(rows, "8", "1")}}
	gone.Close()
	t.Setenv("KUBECONFIG", kubeconfig(t, f.Server))
	f.lists(t, f.address(), other.address(), gone.address())
	out := run(t, "", "top", "--replicas", "--by=user", "--sort=requests", "--limit=1", "--as=carol")
	check.Has(t, out, "61 s until 12:00:01 UTC: 40 requests (0.7/s), 0.0Mi in, 2.0Mi out, 0 watches open\n", "\njane     10         2.0Mi   ", "\nothers   30         0.0Mi   ",
		"exit 1: replica "+gone.address()+": asking /fairlead/busiest: ")
	check.Same(t, []string{"/fairlead/busiest?by=user&limit=100&sort=requests&window=minute carol"}, other.asked, "requests to another replica")
	f.answers["/fairlead/busiest"] = []reply{{http.StatusBadRequest, "limit from 1 to 100"}}
	for _, limit := range []string{"-1", "0", "101"} {
		check.Has(t, run(t, "", "top", "--replicas", "--limit="+limit), "exit 1: asking /fairlead/busiest: 400 Bad Request: limit from 1 to 100\n")
	}
	f.lists(t, gone.address())
	if out := run(t, "", "top", "--replicas"); !strings.HasPrefix(out, "exit 1: replica ") {
		t.Errorf("without an answer: %s", out)
	}
}

// An answer that could not be written is not said to be of something unavailable, which scripts wait for.
func TestUnwritten(t *testing.T) {
	f := newFront(t)
	f.answers["/fairlead/status"] = []reply{{http.StatusOK, `{"notReady":"table: not complete"}`}}
	t.Setenv("KUBECONFIG", kubeconfig(t, f.Server))
	unwritable := must.Get(os.Open(os.DevNull))(t)
	defer unwritable.Close()
	for _, form := range []string{"wide", "json", "yaml"} {
		cmd := root()
		cmd.SetArgs([]string{"status", "-o", form})
		cmd.SetOut(unwritable)
		err := cmd.ExecuteContext(t.Context())
		check.Same(t, true, err != nil && !errors.Is(err, errUnavailable), "%s: error %v, want that of the write", form, err)
	}
}

// An interrupt does not make replicas unknown, which would be exit code 3, nor a finding of what lint did not ask.
func TestInterrupted(t *testing.T) {
	f := newFront(t)
	f.lists(t, f.address())
	t.Setenv("KUBECONFIG", kubeconfig(t, f.Server))
	c := must.Get(connect(genericclioptions.NewConfigFlags(true), io.Discard))(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := askEach(ctx, c, func(context.Context, *client) (int, error) {
		cancel()
		return 0, context.Canceled
	})
	check.Fault(t, "context canceled", err, "asking")
	cmd := root()
	cmd.SetArgs([]string{"lint"})
	cmd.SetOut(io.Discard)
	check.Fault(t, "context canceled", cmd.ExecuteContext(ctx), "lint")
}
