//go:build e2e

package balancer

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

const balancer = "127.0.0.9" // HAProxy's address towards its servers

const rules = `
apiVersion: fairlead.dev/v1
kind: Policy
rules:
- name: not-from-there
  match: {resourceRules: [{verbs: [list], apiGroups: [""], resources: [secrets], namespaces: ["*"]}]}
  sources: [127.0.0.3]
  action: Deny
`

// doors are HAProxy's: its checks, of v2 as docs/operations.md says, and the options of its line "server". The test
// waits for /readyz, through the same door.
var doors = []struct{ name, checks, options string }{
	{"v1", "", "send-proxy check"},
	{"v2", "    option httpchk GET /readyz\n    http-check connect default ssl\n", "check verify none send-proxy-v2"},
	{"bare", "", ""},
}

// TestBalancer has two clients whose addresses are seen by all that looks at addresses, over both
// versions and both protocols.
func TestBalancer(t *testing.T) {
	dir := suite.Folder(t, "balancer")
	file := func(name string) string { return filepath.Join(dir, name) }
	suite.Put(t, file("policy.yaml"), rules)
	c := suite.Start(t, cluster.Config{Dir: dir, Audit: true, APIServerArgs: []string{"--disable-admission-plugins=ServiceAccount"}})
	widgets := extension.Start(t, extension.Config{Names: []string{"api.widgets.svc"}})
	ca, _ := must.Get2(widgets.CA.WriteFiles(dir, "extension-ca"))(t)
	must.Do(t, c.Register(t.Context(), cluster.Backend{Namespace: "widgets", Service: "api", Port: widgets.Port(), CAFile: ca, GroupVersions: []string{"widgets.example.com/v1"}}))
	front := must.Get(c.StartFairlead(t.Context(), cluster.Fairlead{Path: suite.Build(t, dir), Args: []string{
		"--proxy-protocol-from=" + balancer + "/32,2001:db8::/64", "--policy=" + file("policy.yaml"), "--access-log=" + file("access.jsonl"),
		"--audit-policy-file=" + file("audit-policy.yaml"), "--audit-log-path=" + file("front.jsonl"), "-v=4",
	}}))(t)
	must.Do(t, c.WaitAvailable(t.Context(), front.Endpoint, "widgets.example.com/v1"))
	door := balance(t, c, front.Endpoint)
	lines := func(log, what, want string) {
		t.Helper()
		suite.Eventually(t, 10*time.Second, what+" in "+log, func() (bool, string) {
			n, bad := 0, ""
			for line := range strings.Lines(string(must.Get(os.ReadFile(file(log)))(t))) {
				if !strings.Contains(line, what) {
					continue
				}
				if n++; !strings.Contains(line, want) {
					bad = line
				}
			}
			return n > 0 && bad == "", fmt.Sprint(n, " lines, not all with ", want, ": ", bad)
		})
	}

	for _, version := range []string{"v1", "v2"} {
		for _, protocol := range []string{"h2", "http1"} {
			for _, from := range []string{"127.0.0.2", "127.0.0.3"} {
				agent := strings.Join([]string{version, protocol, from}, "-")
				client, url, header := from127(t, c, door[version], from, protocol == "h2"), door[version].URL, http.Header{"User-Agent": {agent}}
				watch := must.Get(ask.Open(t.Context(), client, url+"/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=60", header))(t)
				defer watch.Body.Close()
				made := must.Get(ask.Do(t.Context(), client, http.MethodPost, url+"/api/v1/namespaces/default/configmaps", header, `{"metadata":{"name":"`+agent+`"}}`))(t)
				events := bufio.NewScanner(watch.Body)
				for events.Scan() && !strings.Contains(events.Text(), `"`+agent+`"`) {
				}
				remote := must.Get(ask.Do(t.Context(), client, http.MethodGet, url+"/apis/widgets.example.com/v1/namespaces/default/widgets", header, ""))(t)
				ruled := must.Get(ask.Do(t.Context(), client, http.MethodGet, url+"/api/v1/namespaces/default/secrets", header, ""))(t)
				want := [3]int{http.StatusCreated, http.StatusOK, http.StatusOK}
				if from == "127.0.0.3" {
					want[2] = http.StatusForbidden
				}
				if got := [3]int{made.Code, remote.Code, ruled.Code}; got != want || events.Err() != nil {
					t.Errorf("%s: a write, an extension server, the rule: %v, want %v; the watch: %v", agent, got, want, events.Err())
				}
				busiest := must.Get(ask.Do(t.Context(), client, http.MethodGet, url+"/fairlead/busiest?by=source", nil, ""))(t)
				check.Same(t, true, strings.Contains(busiest.Body, `"`+from+`"`), "%s: %s is among the busiest: %s", agent, from, busiest.Body)
				lines("access.jsonl", agent, `"from":"`+from+`"`)
				lines("front.jsonl", agent, `"sourceIPs":["`+from+`"]`)
				lines("kube-apiserver.audit", agent, `"sourceIPs":["`+from+`","127.0.0.1"]`)
			}
		}
	}
	forwarded := map[string]int{}
	for _, r := range widgets.Requests() {
		if _, from, ok := strings.Cut(r.Header.Get("User-Agent"), "-127."); ok && r.Header.Get("X-Forwarded-For") == "127."+from {
			forwarded[from]++
		}
	}
	check.Same(t, [2]int{4, 4}, [2]int{forwarded["0.0.2"], forwarded["0.0.3"]}, "what the extension server saw of each client")
	execute(t, c, door["v2"])
	lines("access.jsonl", "buoy/exec", `"from":"127.0.0.1"`)

	near := http.Header{"User-Agent": {"near"}}
	must.Get(ask.Do(t.Context(), from127(t, c, front.Endpoint, "127.0.0.2", true), http.MethodGet, front.Endpoint.URL+"/version", near, ""))(t)
	lines("access.jsonl", "near", `"from":"127.0.0.2"`)
	reply, err := ask.Do(t.Context(), from127(t, c, door["bare"], "127.0.0.2", true), http.MethodGet, door["bare"].URL+"/version", nil, "")
	check.Same(t, true, err != nil, "bare: status %d", reply.Code)
	check.Has(t, string(must.Get(os.ReadFile(front.Part.LogFile()))(t)), "PROXY protocol: proxyproto: proxy protocol signature not present")
}

func balance(t *testing.T, c *cluster.Cluster, front cluster.Endpoint) map[string]cluster.Endpoint {
	t.Helper()
	doorOf, config, ports := map[string]cluster.Endpoint{}, "", alone.Ports(t, len(doors))
	for i, d := range doors {
		address := fmt.Sprintf("127.0.0.1:%d", ports[i])
		doorOf[d.name] = cluster.Endpoint{URL: "https://" + address, CAFile: front.CAFile}
		config += fmt.Sprintf("listen %s\n    bind %s\n    source %s\n%s    server one %s %s\n", d.name, address, balancer, d.checks, strings.TrimPrefix(front.URL, "https://"), d.options)
	}
	must.Get(c.StartHAProxy(t.Context(), "haproxy", config, doorOf["v2"].Serves("/readyz", c.Admin())))(t)
	return doorOf
}

// from127 is an administrator's client with an address of its own.
func from127(t *testing.T, c *cluster.Cluster, e cluster.Endpoint, from string, h2 bool) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	config := suite.TLS(t, e, c.Admin())
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: config, Protocols: ask.Only(h2)}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

// execute runs a command in a pod, by kubectl's WebSocket.
func execute(t *testing.T, c *cluster.Cluster, e cluster.Endpoint) {
	t.Helper()
	core := must.Get(kubernetes.NewForConfig(c.Endpoint().RESTConfig(c.Admin())))(t)
	node := must.Get(c.StartNode(t.Context(), c.Endpoint(), "harbour", "127.0.0.1"))(t)
	must.Get(node.Run(t.Context(), core, "default", "buoy"))(t)
	check.Same(t, "to and fro", kubectl.As(t, e, c.Admin()).Feed(t, "to and fro", "exec", "-i", "buoy", "--", "cat"), "what exec prints")
}
