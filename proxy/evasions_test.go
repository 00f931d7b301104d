package proxy

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const evaded = `
apiVersion: fairlead.dev/v1
kind: Policy
rules:
- {name: secrets, match: {resourceRules: [{verbs: ["*"], apiGroups: [""], resources: [secrets], namespaces: [kube-system], clusterScope: true}]}, action: Deny}
- {name: exec, match: {resourceRules: [{verbs: [get, create], apiGroups: [""], resources: [pods/exec, pods/proxy], namespaces: ["*"]}]}, action: Deny}
- {name: collections, match: {resourceRules: [{verbs: [deletecollection], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}]}, action: Deny}
- {name: lists, match: {resourceRules: [{verbs: [list], apiGroups: ["*"], resources: [pods, widgets], namespaces: ["*"], clusterScope: true}]}, wholeLists: true, action: Deny}
- {name: watches, match: {resourceRules: [{verbs: [watch], apiGroups: ["*"], resources: [nodes, widgets], namespaces: ["*"], clusterScope: true}]}, action: Deny}
- {name: mallory, match: {subjects: [{kind: User, user: {name: mallory}}, {kind: ServiceAccount, serviceAccount: {namespace: evil, name: "*"}}]}, action: Deny}
- {name: groups, match: {subjects: [{kind: Group, group: {name: bad}}, {kind: Group, group: {name: "system:nodes"}}]}, action: Deny}
- {name: agents, userAgents: ["evil*"], action: Deny}
- {name: paths, match: {nonResourceRules: [{verbs: [get, post], nonResourceURLs: [/metrics, /logs/*]}]}, action: Deny}
- name: strangers
  match:
    subjects: [{kind: Group, group: {name: "system:unauthenticated"}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: [services], namespaces: ["*"], clusterScope: true}]
  action: Deny
- name: authenticated
  match:
    subjects: [{kind: Group, group: {name: "system:authenticated"}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: [endpoints], namespaces: ["*"], clusterScope: true}]
  action: Deny
`

// stopped is the rule that stops a request, by what an apiserver makes of it, for whoever it is taken and who asks.
func (a *asked) stopped(rules *policy.Gates) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(a.Path, "/"), "/")
	health := !a.IsResourceRequest && slices.Contains([]string{"livez", "readyz", "healthz"}, first)
	r := Request(*a.RequestInfo)
	for _, u := range []user.Info{a.user, a.asker} {
		q := r.ForPolicy(u, a.agent)
		if q.WholeList = a.whole; u != a.user {
			q = impersonating(a.user.GetName()).ForPolicy(u, a.agent)
		}
		if rule, _ := rules.Find(&q); rule != nil && !health && (u != a.asker || !slices.Contains(exempt, u.GetName())) {
			return rule.Name
		}
	}
	return ""
}

// odd is a request that somebody may hope to be read in two ways.
func odd(t *testing.T, w *rand.Rand, front string) *http.Request {
	of := func(all ...string) string { return all[w.IntN(len(all))] }
	method := of("GET", "GET", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "DELETE", "OPTIONS", "get", "Get", "TRACE", "PURGE", "delete")
	path := of("/api/v1/namespaces/kube-system/secrets/x", "/api/v1/namespaces/kube-system/secrets", "/api/v1/secrets", "/api/v1/namespaces/a/pods/b/exec", "/api/v1/namespaces/a/pods/b/proxy/metrics",
		"/api/v1/pods", "/api/v1/namespaces/a/pods", "/api/v1/nodes", "/api/v1/watch/nodes", "/api/v1/watch/namespaces/a/pods", "/api/v1/proxy/nodes/a", "/apis/apps/v1/deployments",
		remoteGV+"/widgets", remoteGV+"/namespaces/a/widgets", remoteGV+"/namespaces/a/widgets/b", remoteGV+"/watch/widgets", "/metrics", "/metrics/cadvisor", "/logs/x", "/version", "/readyzx",
		"/readyz/../api/v1/secrets", "//readyz", "/livez/../metrics", "/livez", "/api/v1/services", "/api/v1/endpoints", "/api/v1/namespaces/a/services/b", "/api/v1/namespaces/kube-system/configmaps/p", remoteGV)
	for range w.IntN(3) {
		i := 1 + w.IntN(len(path)-1)
		switch w.IntN(7) {
		case 0:
			path = path[:i] + fmt.Sprintf("%%%02x", path[i]) + path[i+1:]
		case 1:
			path = path[:i] + fmt.Sprintf("%%25%02X", path[i]) + path[i+1:]
		case 2:
			path = path[:i] + of("/", "//", ".", "/./", "/../", ";", "%2f", "%2F..%2F", "%00") + path[i:]
		case 3:
			path += of("/", "//", "/.", "/status", "/%20", "?", "%3Fwatch=1", "/exec", ";a=b")
		case 4:
			path = path[:i] + strings.ToUpper(path[i:i+1]) + path[i+1:]
		}
		path = strings.ReplaceAll(strings.ReplaceAll(path, "%%", "%"), "?", "%3F")
	}
	var query []string
	if w.IntN(8) == 0 {
		method, path = "GET", of("/api/v1/pods", remoteGV+"/widgets", "/api/v1/nodes")
	}
	for range max(0, w.IntN(5)-1) {
		key := of("watch", "limit", "limit", "resourceVersion", "resourceVersion", "continue", "fieldSelector", "labelSelector", "resourceVersionMatch", "timeoutSeconds", "sendInitialEvents",
			"Watch", "%77atch", "li%6dit", "resource%56ersion", "limit%00", " limit", "+limit", "allowWatchBookmarks")
		query = append(query, key+of("=", "=", "=", "=", "")+of("", "0", "1", "true", "false", "FALSE", "no", "-1", "+0", "00", "-0", "0x0", "500", "99999999999999999999", "%30", "%", "%zz", "a;b", "metadata.name=x",
			"metadata.name%3Dx", "metadata.name%3Dx%2Ca%3Db", "metadata.name!=x", "Exact", " 1", "1 ", "+"))
	}
	r := must.Get(http.NewRequestWithContext(t.Context(), method, front, nil))(t)
	r.Host = frontHost
	r.URL.Host, r.URL.Opaque, r.URL.RawQuery = frontHost, "//"+frontHost+path, strings.ReplaceAll(strings.Join(query, of("&", "&", "&", "&&", ";")), " ", "%20")
	r.Header["User-Agent"] = [][]string{{"good"}, {"evil/1"}, {"good", "evil"}, {""}}[w.IntN(4)]
	field := func(name, value string) {
		name = of(name, name, strings.ToLower(name), strings.ToUpper(name))
		r.Header[name] = append(r.Header[name], value)
	}
	for range w.IntN(3) {
		field("Authorization", of("Bearer token-of-bob", "Bearer token-of-mallory", "bearer token-of-mallory", "Bearer  token-of-mallory", "Bearer bad", "Basic YTpi", "", "Bearer token-of-mallory x", "Bearer token-of-system:fairlead"))
	}
	for range max(0, w.IntN(6)-3) {
		field("Impersonate-User", of("mallory", "", "jane", "system:serviceaccount:evil:x", "system:anonymous", "system:node:n1", "system:fairlead", "system:apiserver", " mallory", "system:kube-aggregator", "system:serviceaccount:evil:"))
	}
	for range max(0, w.IntN(8)-5) {
		field(of("Impersonate-Group", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-A", "Impersonate-Groups", "Impersonate_User"), of("bad", "system:masters", "system:unauthenticated", "system:authenticated", "", "mallory"))
	}
	if w.IntN(4) == 0 {
		field("X-Remote-User", of("mallory", "jane", "system:fairlead", ""))
		field("X-Remote-Group", of("bad", "system:masters", ""))
	}
	if w.IntN(4) == 0 {
		field("Connection", of("impersonate-user", "Authorization", "user-agent, impersonate-group", "x-remote-user", "close, impersonate-user"))
	}
	if w.IntN(4) == 0 {
		field("Connection", "Upgrade")
		field("Upgrade", of("websocket", "SPDY/3.1", "WebSocket", "h2c"))
		for range w.IntN(3) {
			protocol := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(of("token-of-mallory", "token-of-bob", "bad")))
			field("Sec-Websocket-Protocol", of(protocol+", v4.channel.k8s.io", "v4.channel.k8s.io,"+protocol, protocol, protocol+","+protocol))
		}
	}
	field("X-Forwarded-For", of("10.1.1.1", "127.0.0.1, 10.1.1.1", "x"))
	return r
}

// No request that an apiserver would execute passes a rule that it would stop by what the apiserver
// takes it for: by its own code, however the request is written.
func TestEvasions(t *testing.T) {
	server := newAPIServer()
	var w *world
	var mu sync.Mutex
	var evasions []string
	passed := 0
	watch := func(remote bool) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			all := server.asked(r)
			mu.Lock()
			defer mu.Unlock()
			for _, a := range all {
				if passed++; a.stopped(w.table().Rules()) != "" {
					evasions = append(evasions, fmt.Sprintf("rule %s, remote %v: %s %s as %v (%+v): %v", a.stopped(w.table().Rules()), remote, r.Method, r.RequestURI, a.user, *a.RequestInfo, r.Header))
				}
			}
			_, _ = io.WriteString(rw, "ok")
		}
	}
	w = newWorld(t, worldConfig{local: watch(false), remote: watch(true), also: func(in *registry.Input) { scene.SetPolicy(t, in, "p.yaml", evaded) }})
	rnd := rand.New(rand.NewPCG(4, 7))
	pairs := []*pki.Pair{
		nil, nil, w.client.Issue(pki.Leaf{CommonName: "alice"}), w.client.Issue(pki.Leaf{CommonName: "boss"}), w.client.Issue(pki.Leaf{CommonName: "mallory"}),
		w.client.Issue(pki.Leaf{CommonName: "eve", Organizations: []string{"bad"}}), w.authorities.front.Issue(pki.Leaf{CommonName: "outer"}), pki.NewCA("elsewhere").Issue(pki.Leaf{CommonName: "x"}),
	}
	refused := make(map[string]int)
	for _, proto := range []string{"http/1.1", "h2"} {
		for _, pair := range pairs {
			c := w.httpClient(t, proto, pair)
			for range 400 {
				r := odd(t, rnd, w.front.URL)
				if proto == "h2" {
					maps.DeleteFunc(r.Header, func(name string, _ []string) bool {
						return strings.EqualFold(name, "connection") || strings.EqualFold(name, "upgrade")
					})
				}
				res, err := c.Do(r)
				if err != nil {
					continue // the client does not send such a request, or the connection was ended
				}
				body, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if _, rest, ok := strings.Cut(string(body), `rule \"`); ok {
					rule, _, _ := strings.Cut(rest, `\"`)
					refused[rule]++
				}
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, e := range evasions[:min(len(evasions), 10)] {
		t.Error(e)
	}
	all := w.table().Rules().All()
	check.Same(t, 11, len(all), "rules")
	for _, g := range all {
		check.Same(t, true, refused[g.Name] >= 5, "the rounds say enough: rule %s has refused %d requests", g.Name, refused[g.Name])
	}
	check.Same(t, true, passed >= 200, "the rounds say enough: %d requests passed", passed)
}
