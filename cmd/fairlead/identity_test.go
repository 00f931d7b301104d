package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const carolMayList = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: lists}
rules: [{apiGroups: [apiregistration.k8s.io], resources: [apiservices], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: lists}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: lists}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: carol}]
`

// asked sends a request with a header field, and returns the status code and the refused user.
func asked(t *testing.T, c *http.Client, at *front.Listener, field string) string {
	t.Helper()
	header := http.Header{}
	if name, value, given := strings.Cut(field, ": "); given {
		header.Set(name, value)
	}
	reply := must.Get(ask.Do(t.Context(), c, http.MethodGet, urlOf(at)+"/apis/apiregistration.k8s.io/v1/apiservices", header, ""))(t)
	_, user, _ := strings.Cut(reply.Body, `User \"`)
	user, _, refused := strings.Cut(user, `\"`)
	if !refused {
		user = ""
	}
	return strings.TrimSpace(fmt.Sprint(reply.Code, " ", user))
}

// Each CA verifies its own kind of certificate, at both ports and over both protocols, and every
// changed file takes effect soon, even for a caller whose credential or decision is cached.
func TestIdentities(t *testing.T) {
	dir, users, proxies := t.TempDir(), pki.NewCA("users"), pki.NewCA("proxies")
	userCA := writeFile(t, filepath.Join(dir, "users.crt"), string(users.PEM()))
	tokens := writeFile(t, filepath.Join(dir, "tokens"), "secret,bob,1\n")
	d := aloneDoor(t, "--client-ca-file", userCA, "--requestheader-client-ca-file", writeFile(t, filepath.Join(dir, "proxies.crt"), string(proxies.PEM())), "--token-auth-file", tokens,
		"--authentication-token-webhook-cache-ttl=1h", "--authorization-webhook-cache-authorized-ttl=1h", "--authorization-webhook-cache-unauthorized-ttl=1h")
	d.start(t)
	jane, gateway := users.Issue(pki.Leaf{CommonName: "jane"}), proxies.Issue(pki.Leaf{CommonName: "gateway"})
	const bob, carol, root = "Authorization: Bearer secret", "X-Remote-User: carol", "X-Remote-User: root"
	for _, tt := range []struct {
		name        string
		pair        *pki.Pair
		field, want string
	}{
		{"a user", jane, "", "403 jane"},
		{"a user who names another", jane, root, "403 jane"},
		{"a front proxy", gateway, carol, "403 carol"},
		{"a front proxy that names nobody", gateway, "", "401"},
		{"a token", nil, bob, "403 bob"},
		{"nobody, who names somebody", nil, root, "401"},
	} {
		for _, http2 := range []bool{true, false} {
			c := clientOf(t, http2, tt.pair)
			check.Same(t, []string{tt.want, tt.want}, []string{asked(t, c, d.ports.front, tt.field), asked(t, c, d.ports.admin, tt.field)}, "%s, HTTP/2 %v", tt.name, http2)
		}
	}
	for _, tt := range []struct {
		file, content        string
		pair                 *pki.Pair
		field, before, after string
	}{
		{tokens, "secret,ben,2\n", nil, bob, "403 bob", "403 ben"},
		{filepath.Join(d.o.registry.dir, "roles.yaml"), carolMayList, gateway, carol, "403 carol", "200"},
		{userCA, string(pki.NewCA("others").PEM()), jane, "", "403 jane", "401"},
	} {
		c, got := clientOf(t, false, tt.pair), tt.before
		check.Same(t, tt.before, asked(t, c, d.ports.front, tt.field), "%s, before", tt.file)
		writeFile(t, tt.file, tt.content)
		must.Soon(t, 20*time.Second, tt.file, func() bool { got = asked(t, c, d.ports.front, tt.field); return got != tt.before })
		check.Same(t, tt.after, got, "%s, afterwards", tt.file)
	}
}

// A TTL of 0 is no cache, not the default: each request is reviewed. With --http2=false, clients
// are offered only HTTP/1.1.
func TestNothingIsCached(t *testing.T) {
	d := aloneDoor(t, "--token-auth-file", writeFile(t, filepath.Join(t.TempDir(), "tokens"), "c,carol,1\nb,bob,2\n"), "--http2=false",
		"--authentication-token-webhook-cache-ttl=0", "--authorization-webhook-cache-authorized-ttl=0", "--authorization-webhook-cache-unauthorized-ttl=0")
	writeFile(t, filepath.Join(d.o.registry.dir, "roles.yaml"), carolMayList)
	d.start(t)
	must.Soon(t, 20*time.Second, "the roles are read", func() bool {
		roles, _, _ := d.registry.Roles()
		return len(roles) > 0
	})
	const bob, carol = "Authorization: Bearer b", "Authorization: Bearer c"
	c, n := clientOf(t, false, nil), 0
	must.Soon(t, 20*time.Second, "the APIServices are read", func() bool { n++; return asked(t, c, d.ports.front, carol) == "200" })
	got := fmt.Sprint(asked(t, c, d.ports.front, carol), ", ", asked(t, c, d.ports.front, bob), ", ", asked(t, c, d.ports.front, bob), ", ")
	for _, f := range must.Get(d.metrics.Gather())(t) {
		for _, m := range f.GetMetric() {
			if n := m.GetCounter().GetValue(); n > 0 && strings.HasSuffix(f.GetName(), "_reviews_total") {
				got += fmt.Sprint(m.GetLabel()[0].GetValue(), " ", n, ", ")
			}
		}
	}
	check.Same(t, fmt.Sprintf("200, 403 bob, 403 bob, authenticated %d, allowed %d, denied 2, ", n+3, n+1), got, "answers and reviews")
	check.Same(t, 10*time.Second, aloneDoor(t, "--authentication-token-webhook-cache-ttl=2m").o.authn.TokenTTL, "for JWTs, whatever TokenReviews may last")
	if res, err := clientOf(t, true, nil).Get(urlOf(d.ports.front)); err == nil {
		_ = res.Body.Close()
		t.Error("HTTP/2 is offered")
	}
}

// Until the cluster's header names are read, this replica is not ready and asserts no user: a
// client could use a name that only the cluster knows.
func TestHeaderNamesAreAwaited(t *testing.T) {
	d := doorBefore(t, "https://127.0.0.1:1") // nobody is there
	_, known := d.clusterNames()
	check.Same(t, false, known, "the names are known before they are read")
	check.Fault(t, "not been read yet, or what it has is refused", d.namesReady(nil), "readiness")
}

// A Type=notify unit is notified once this process is ready, and when it begins to stop. The log says so, too, even if
// it is ready at the first look.
func TestSystemdIsNotified(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	defer l.Close()
	must.Do(t, l.SetReadDeadline(time.Now().Add(20*time.Second)))
	t.Setenv("NOTIFY_SOCKET", socket)
	o := serving(t, "--registry=dir:"+t.TempDir())
	var log logbook.Book
	to := slog.New(slog.NewTextHandler(&log, nil))
	stop := must.Run(t, func(ctx context.Context) error { return cmp.Or(run(ctx, o, to), ctx.Err()) })
	for _, want := range []string{"READY=1", "STOPPING=1"} {
		b := make([]byte, 256)
		check.Same(t, want, string(b[:must.Get(l.Read(b))(t)]), "systemd")
		go stop() // the second call waits
	}
	stop()
	check.Has(t, log.String(), "msg=ready\n", "msg=drained\n")
}

// serve has every flag that the unit's files name.
func TestUnitFile(t *testing.T) {
	unit := string(must.Get(os.ReadFile("../../deploy/systemd/fairlead.service"))(t))
	fs := flagSet(new(options))
	for _, named := range regexp.MustCompile(`--[a-z0-9-]+`).FindAllString(unit+string(must.Get(os.ReadFile("../../deploy/systemd/fairlead.default"))(t)), -1) {
		check.Same(t, true, named == "--help" || fs.Lookup(strings.TrimPrefix(named, "--")) != nil, "%s is named, but is not a flag of serve", named)
	}
	for _, line := range []string{`ExecStart=\S+/fairlead serve `, "StartLimitIntervalSec=0\n", "Type=notify", "KillMode=mixed", "LimitNOFILE=",
		"RestrictAddressFamilies=.*AF_NETLINK"} { // which net.InterfaceAddrs needs
		check.Same(t, true, regexp.MustCompile("(?m)^"+line).MatchString(unit), "the unit has no line %s…", line)
	}
}

func TestJWTBesideLocalAPIServer(t *testing.T) {
	const text = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {url: https://issuer.example.com, audiences: [a]}\n" +
		"  claimMappings: {username: {claim: sub, prefix: ''}}\n"
	p := newProcess(&options{authConfig: "file"}, slog.New(slog.DiscardHandler))
	p.makeTokens()
	err := p.files[1].Take([]byte(text))
	check.Fault(t, "jwt: the local apiserver authenticates all tokens", err, "jwt with a local apiserver")
	check.Same(t, 0, strings.Count(fmt.Sprint(err), "\n"), "line breaks in the error")
	p.o.registry = sources{dir: "/x"}
	p.makeTokens()
	must.Do(t, p.files[3].Take([]byte(text)))
}
