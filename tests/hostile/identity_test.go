//go:build e2e

package hostile

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// No caller can assume another identity, whatever it sends in addition to its credentials.
func TestIdentity(t *testing.T) {
	w := newWorld(t)
	for name, impersonates := range map[string]bool{"frame": false, "impersonate": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarbour(t, w, impersonates)
			t.Run("matrix", func(t *testing.T) { testMatrix(t, h) })
			t.Run("leakage", func(t *testing.T) { testLeakage(t, h) })
		})
	}
}

// passport is one kind of credentials.
type passport struct {
	name   string
	pair   *pki.Pair
	header []string // pairs of names and values
	// local and own are the resulting user at the local apiserver, and where Fairlead
	// authenticates. Empty: 401. The local apiserver knows system:anonymous.
	local, own string
	// refused is the status if impersonation is refused, else 0.
	refused int
}

func (h *harbour) passports(t *testing.T) []passport {
	t.Helper()
	user := func(name string, groups ...string) *pki.Pair {
		return h.PKI.Client.CA.Issue(pki.Leaf{CommonName: name, Organizations: groups})
	}
	bearer := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	foreign, outer := pki.NewCA("client-ca"), h.outer.Issue(pki.Leaf{CommonName: "outer"})
	robot := base64.RawURLEncoding.EncodeToString([]byte("bob-token"))
	return []passport{
		{name: "nothing", local: "system:anonymous"},
		{name: "certificate", pair: user("dave", "dev"), local: "dave", own: "dave"},
		{name: "token", header: bearer("alice-token"), local: "alice", own: "alice"},
		{name: "bad token", header: bearer("nobody")},
		{name: "basic", header: []string{"Authorization", "Basic cm9vdDpyb290"}, local: "system:anonymous"},
		{name: "token in a WebSocket protocol", header: []string{"Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io." + robot + ", v4.channel.k8s.io"}, local: "system:anonymous"},
		{name: "foreign certificate", pair: foreign.Issue(pki.Leaf{CommonName: "admin", Organizations: []string{"system:masters"}})},
		{name: "expired certificate", pair: h.PKI.Client.CA.Issue(pki.Leaf{CommonName: "admin", Organizations: []string{"system:masters"}, NotAfter: time.Now().Add(-time.Minute)})},
		{name: "server certificate", pair: h.PKI.Serving.CA.Issue(pki.Leaf{CommonName: "admin", Organizations: []string{"system:masters"}})},
		{name: "certificate of the proxies behind", pair: h.PKI.FrontProxy.CA.Issue(pki.Leaf{CommonName: "front-proxy-client"})},
		{name: "certificate and another's token", pair: user("dave"), header: bearer("alice-token"), local: "dave", own: "dave"},
		{name: "foreign certificate and a token", pair: foreign.Issue(pki.Leaf{CommonName: "admin"}), header: bearer("alice-token"), local: "alice", own: "alice"},
		{name: "front proxy", pair: outer, header: []string{"X-Remote-User", "erin", "X-Remote-Group", "crew"}, local: "erin", own: "erin"},
		{name: "front proxy of another name", pair: h.outer.Issue(pki.Leaf{CommonName: "inner"}), header: []string{"X-Remote-User", "erin"}},
		{name: "impersonation", pair: user("root", "wheel"), header: []string{"Impersonate-User", "carol"}, local: "carol", own: "carol"},
		{name: "impersonation that is not allowed", pair: user("dave"), header: []string{"Impersonate-User", "carol"}, refused: http.StatusForbidden},
		{name: "impersonation without a user", pair: user("dave"), header: []string{"Impersonate-Group", "system:masters"}, refused: http.StatusInternalServerError},
	}
}

// forgeries are headers that a caller could add, in pairs of name and value.
func forgeries() map[string][]string {
	return map[string][]string{
		"none":                  nil,
		"user":                  {"X-Remote-User", "system:admin"},
		"group":                 {"X-Remote-Group", "system:masters"},
		"both":                  {"X-Remote-User", "system:admin", "X-Remote-Group", "system:masters", "X-Remote-Group", "system:nodes"},
		"lower case":            {"x-remote-user", "system:admin"},
		"upper case":            {"X-REMOTE-USER", "system:admin", "X-REMOTE-GROUP", "system:masters"},
		"underscores":           {"X_Remote_User", "system:admin", "X_Remote_Group", "system:masters"},
		"mixed underscores":     {"X-Remote_User", "system:admin", "X_Remote-Group", "system:masters"},
		"uid":                   {"X-Remote-Uid", "0"},
		"extra":                 {"X-Remote-Extra-Scopes.authorization.openshift.io", "user:full", "X-Remote-Extra-%2e", "x"},
		"unknown of the family": {"X-Remote-Anything", "system:admin"},
		"twice":                 {"X-Remote-User", "system:admin", "X-Remote-User", "system:kube-aggregator"},
		"empty user":            {"X-Remote-User", ""},
		"forwarded":             {"X-Forwarded-For", "127.0.0.1", "Forwarded", "for=127.0.0.1;by=system:admin", "X-Forwarded-Host", "kubernetes"},
		"proxy authorization":   {"Proxy-Authorization", "Bearer admin-token"},
		"cookie":                {"Cookie", "X-Remote-User=system:admin; token=admin-token"},
		"certificate header":    {"X-Client-Cert", "system:admin", "X-Ssl-Client-Verify", "SUCCESS", "X-Forwarded-Client-Cert", "By=spiffe://x;URI=spiffe://admin"},
		"connection":            {"Connection", "X-Remote-User, Authorization, Impersonate-User", "X-Remote-User", "system:admin"},
		"via":                   {"Fairlead-Via", "somebody"},
		"override":              {"X-Http-Method-Override", "DELETE", "X-Original-Url", "/api/v1/secrets", "X-Rewrite-Url", "/api/v1/secrets"},
	}
}

const (
	reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	review  = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
)

// route is one place to send requests to.
type route struct {
	name, path string
	own        bool // Fairlead authenticates
	upgrade    bool // to a WebSocket
}

var routes = []route{
	{name: "local", path: reviews},
	{name: "remote", path: remotePath + "?limit=1", own: true},
	{name: "document", path: "/apis/mirror.example.com", own: true},
	{name: "page", path: "/fairlead/status", own: true},
	{name: "admin", path: "/status", own: true},
	{name: "upgrade at the local apiserver", path: "/api/v1/namespaces/default/configmaps", upgrade: true},
	{name: "upgrade of a remote", path: remotePath + "/widget-001/exec", own: true, upgrade: true},
}

// seen sends a request to a route, and returns the user that was seen there. A refusal of a named
// user counts as 200, as does every other answer to that user.
func (h *harbour) seen(t *testing.T, r route, v *visitor) (status int, user string) {
	t.Helper()
	h.remote.Forget()
	base, method, body := h.front.Endpoint.URL, http.MethodGet, ""
	if r.name == "admin" {
		base = h.front.Admin.URL
	}
	if r.path == reviews {
		method, body = http.MethodPost, review
	}
	status, answer := v.ask(t, method, base+r.path, body, r.upgrade)
	switch {
	case strings.HasPrefix(r.path, remotePath):
		if user = h.toldRemote(t, v.trusted); user == "" && status < 400 {
			user = "nobody"
		}
	case status == http.StatusForbidden:
		return http.StatusOK, named(answer)
	case r.path == reviews && status == http.StatusCreated:
		var got authenticationv1.SelfSubjectReview
		must.Do(t, json.Unmarshal([]byte(answer), &got))
		if user = got.Status.UserInfo.Username; slices.Contains(got.Status.UserInfo.Groups, "system:masters") {
			user = "a master"
		}
	}
	if status < 400 {
		status = http.StatusOK
	}
	return status, user
}

// toldRemote returns the user of the last request that the extension server received. Only a
// trusted front proxy's identity headers may arrive unchanged.
func (h *harbour) toldRemote(t *testing.T, trusted bool) string {
	t.Helper()
	found := ""
	for _, r := range h.remote.Requests(0) {
		if !strings.HasPrefix(r.Target, remotePath) || r.Header.Get("User-Agent") == "" && r.Header.Get("X-Remote-User") == "system:kube-aggregator" {
			continue
		}
		for name := range r.Header {
			lower := strings.ReplaceAll(strings.ToLower(name), "_", "-")
			ours := trusted || name == "X-Remote-User" || name == "X-Remote-Group" || name == "X-Remote-Uid" && strings.HasPrefix(r.Header.Get(name), "uid-") || strings.HasPrefix(name, "X-Remote-Extra-Authentication.kubernetes.io")
			if strings.HasPrefix(lower, "x-remote") && !ours || strings.HasPrefix(lower, "impersonate") || lower == "authorization" || lower == "proxy-authorization" {
				t.Errorf("%s: %v reached the extension server", name, r.Header[name])
			}
		}
		if slices.Contains(r.Header["X-Remote-Group"], "system:masters") {
			return "a master"
		}
		found = strings.Join(r.Header["X-Remote-User"], ",")
	}
	return found
}

// visitor is a caller with a passport and a forgery.
type visitor struct {
	client  *http.Client
	header  []string
	trusted bool // a front proxy, whose headers count
}

func (v *visitor) ask(t *testing.T, method, url, body string, upgrade bool) (int, string) {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body)))(t)
	for i := 0; i < len(v.header); i += 2 {
		r.Header[v.header[i]] = append(r.Header[v.header[i]], v.header[i+1]) // not Add: it would change the spelling of names
	}
	if upgrade {
		r.Header["Connection"] = append(r.Header["Connection"], "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Sec-WebSocket-Version", "13")
		r.Header.Set("Sec-WebSocket-Key", "MDEyMzQ1Njc4OWFiY2RlZg==")
		if r.Header.Get("Sec-WebSocket-Protocol") == "" {
			r.Header.Set("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
		}
	}
	res, err := v.client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusSwitchingProtocols {
		return res.StatusCode, ""
	}
	return res.StatusCode, string(must.Get(io.ReadAll(res.Body))(t))
}

// testMatrix sends each passport with each forgery to each route, over both protocols.
func testMatrix(t *testing.T, h *harbour) {
	asked := 0
	for _, p := range h.passports(t) {
		for _, proto := range []string{"h2", "http/1.1"} {
			t.Run(p.name+" over "+proto, func(t *testing.T) {
				c := client(h.tls(p.pair), proto)
				defer c.CloseIdleConnections()
				for name, forged := range forgeries() {
					v := &visitor{c, slices.Concat(p.header, forged), p.name == "front proxy"}
					for _, r := range routes {
						if proto == "h2" && (name == "connection" || r.upgrade) {
							continue // HTTP/2 has neither
						}
						asked++
						h.check(t, &p, name, r, v)
					}
				}
			})
		}
	}
	t.Logf("%d combinations", asked)
}

// mastered reports whether believing a forgery puts the caller into system:masters.
func (p *passport) mastered(forgery string) bool {
	return p.name == "front proxy" && (forgery == "group" || forgery == "both" || forgery == "upper case")
}

// expected is the result of a passport on a route. A front proxy's headers count.
func (p *passport) expected(r route, forgery string) (status int, users []string) {
	user := p.local
	if r.own {
		user = p.own
	}
	switch {
	case r.upgrade && p.name == "token in a WebSocket protocol":
		return http.StatusOK, []string{"bob"} // the purpose of that protocol
	case p.refused != 0:
		return p.refused, nil
	case user == "":
		return http.StatusUnauthorized, nil
	case p.name == "front proxy":
		// Headers of a trusted proxy are not forged: its first user counts, and its groups.
		switch forgery {
		case "group", "both", "lower case", "upper case":
			return http.StatusOK, []string{user, "a master", "system:admin", ""} // a master may see what others may not
		}
	}
	return http.StatusOK, []string{user}
}

func (h *harbour) check(t *testing.T, p *passport, forgery string, r route, v *visitor) {
	t.Helper()
	status, user := h.seen(t, r, v)
	want, users := p.expected(r, forgery)
	if h.impersonates && (status == http.StatusForbidden || strings.Contains(user, "nobody: ")) && p.mastered(forgery) {
		return // Fairlead may not impersonate system:masters
	}
	if p.refused != 0 && (status >= 400 || user == "dave") {
		return // any refusal will do: one that names a user is read as 200
	}
	if status != want || users != nil && !slices.Contains(users, user) {
		t.Errorf("%s, forged %s: %d %q, want %d %q", r.name, forgery, status, user, want, users)
	}
}
