package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
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

// Each CA verifies its own kind of certificate, and every changed file takes effect soon, even for
// a caller whose credential or decision is cached.
func TestIdentities(t *testing.T) {
	dir := t.TempDir()
	users, proxies := pki.NewCA("users"), pki.NewCA("proxies")
	write := func(path string, content []byte) string { return writeFile(t, path, string(content)) }
	userCA, tokens, roles := filepath.Join(dir, "users.crt"), filepath.Join(dir, "tokens"), ""
	address, tc, _ := serveDoor(t, func(o *options) {
		o.clientCA, o.requestHeaderCA = write(userCA, users.PEM()), write(filepath.Join(dir, "proxies.crt"), proxies.PEM())
		o.tokenFile = write(tokens, []byte("secret,bob,1\n"))
		o.tokenTTL, o.authorizedTTL, o.unauthorizedTTL = time.Hour, time.Hour, time.Hour
		roles = filepath.Join(strings.TrimPrefix(o.registry, "dir:"), "roles.yaml")
	})
	as := func(pair *pki.Pair) *old {
		c := tc.Clone()
		if pair != nil {
			c.Certificates = []tls.Certificate{pair.TLS()}
		}
		return dialOld(t, address, c)
	}
	jane, gateway := users.Issue(pki.Leaf{CommonName: "jane"}), proxies.Issue(pki.Leaf{CommonName: "gateway"})
	const bob, carol, root = "Authorization: Bearer secret", "X-Remote-User: carol", "X-Remote-User: root"
	for _, tt := range []struct {
		name  string
		pair  *pki.Pair
		field string
		want  string
	}{
		{"a user", jane, "", "403 jane"},
		{"a user who names another", jane, root, "403 jane"},
		{"a front proxy", gateway, carol, "403 carol"},
		{"a front proxy that names nobody", gateway, "", "401"},
		{"a token", nil, bob, "403 bob"},
		{"nobody, who names somebody", nil, root, "401"},
	} {
		check.Same(t, tt.want, as(tt.pair).user(t, tt.field), "%s", tt.name)
	}
	for _, tt := range []struct {
		file, content string
		pair          *pki.Pair
		field         string
		before, after string
	}{
		{tokens, "secret,ben,2\n", nil, bob, "403 bob", "403 ben"},
		{roles, carolMayList, gateway, carol, "403 carol", "200"},
		{userCA, string(pki.NewCA("others").PEM()), jane, "", "403 jane", "401"},
	} {
		conn := as(tt.pair)
		check.Same(t, tt.before, conn.user(t, tt.field), "%s, before", tt.file)
		write(tt.file, []byte(tt.content))
		got := tt.before
		for late := time.Now().Add(20 * time.Second); got == tt.before && time.Now().Before(late); {
			got = conn.user(t, tt.field)
		}
		check.Same(t, tt.after, got, "%s, afterwards", tt.file)
	}
}

// A TTL of 0 is no cache, not the default: each request is reviewed.
func TestNothingIsCached(t *testing.T) {
	d, ca := aloneDoor(t, func(o *options) {
		writeFile(t, filepath.Join(o.directory(), "roles.yaml"), carolMayList)
		o.tokenFile = writeFile(t, filepath.Join(t.TempDir(), "tokens"), "c,carol,1\nb,bob,2\n")
		o.tokenTTL, o.authorizedTTL, o.unauthorizedTTL = 0, 0, 0
	})
	runDoor(t, d)
	must.Soon(t, 20*time.Second, "the roles are read", func() bool {
		roles, _, _ := d.registry.Roles()
		return len(roles) > 0
	})
	conn := dialOld(t, d.frontListener.Addr().String(), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12})
	got := ""
	for range 2 {
		got += conn.user(t, "Authorization: Bearer c") + ", " + conn.user(t, "Authorization: Bearer b") + ", "
	}
	for _, f := range must.Get(d.metrics.Gather())(t) {
		for _, m := range f.GetMetric() {
			if n := m.GetCounter().GetValue(); n > 0 && strings.HasSuffix(f.GetName(), "_reviews_total") {
				got += fmt.Sprint(m.GetLabel()[0].GetValue(), " ", n, ", ")
			}
		}
	}
	check.Same(t, "200, 403 bob, 200, 403 bob, authenticated 4, allowed 2, denied 2, ", got, "answers and reviews")
}

// Until the cluster's header names are read, this replica is not ready and asserts no user: a
// client could use a name that only the cluster knows.
func TestHeaderNamesAreAwaited(t *testing.T) {
	d := buildDoor(t, prometheus.NewRegistry(), func(*options, *pki.CA) {}) // its local apiserver is away
	if _, known := d.targetNames(); known || d.namesReady(nil) == nil {
		t.Error("the names are known before they are read")
	}
	d, _ = aloneDoor(t, func(*options) {})
	runDoor(t, d)
	must.Soon(t, 20*time.Second, "without a cluster there are none", func() bool {
		names, known := d.targetNames()
		return names == nil && known && d.namesReady(nil) == nil
	})
}

// user sends a request with a header field, and returns the status code and the refused user.
func (o *old) user(t *testing.T, field string) string {
	t.Helper()
	if field != "" {
		field += "\r\n"
	}
	must.Get(io.WriteString(o, "GET /apis/apiregistration.k8s.io/v1/apiservices HTTP/1.1\r\nHost: x\r\n"+field+"\r\n"))(t)
	res := must.Get(http.ReadResponse(o.r, nil))(t)
	defer res.Body.Close()
	body := must.Get(io.ReadAll(res.Body))(t)
	_, user, _ := strings.Cut(string(body), `User \"`)
	user, _, refused := strings.Cut(user, `\"`)
	if !refused {
		user = ""
	}
	return strings.TrimSpace(res.Status[:3] + " " + user)
}

// A client that chooses among replicas can see that this one drains while it still serves.
func TestDrainIsSeen(t *testing.T) {
	d, ca := aloneDoor(t, func(o *options) { o.authzMode, o.anonymous, o.watchGrace = authzAlwaysAllow, true, time.Minute })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.serve(ctx) }()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}}}
	get := func(l *front.Listener, path string) *http.Response {
		res := must.Get(client.Get("https://" + l.Addr().String() + path))(t)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	until := func(ready bool) {
		must.Soon(t, 20*time.Second, fmt.Sprintf("it is seen that it is ready: %v", ready), func() bool {
			return (get(d.adminListener, "/readyz").StatusCode == http.StatusOK) == ready
		})
	}
	until(true)
	watch := get(d.frontListener, "/apis/apiregistration.k8s.io/v1/apiservices?watch=1") // keeps the drain waiting
	cancel()
	until(false)
	_ = watch.Body.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A Type=notify unit is notified once this process is ready, and when it begins to stop.
func TestSystemdIsNotified(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	notified := func() string {
		t.Helper()
		b := make([]byte, 256)
		must.Do(t, l.SetReadDeadline(time.Now().Add(20*time.Second)))
		n := must.Get(l.Read(b))(t)
		return string(b[:n])
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	o, _ := directoryOptions(t)
	go func() { ended <- run(ctx, o, slog.New(slog.DiscardHandler)) }()
	check.Same(t, "READY=1", notified(), "systemd at the start")
	stop()
	check.Same(t, "STOPPING=1", notified(), "systemd at the end")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// serve accepts the unit's command line, and has every flag that the unit's files name.
func TestUnitFile(t *testing.T) {
	unit := must.Get(os.ReadFile("../../deploy/systemd/fairlead.service"))(t)
	_, rest, ok := strings.Cut(string(unit), "ExecStart=")
	command, _, _ := strings.Cut(strings.ReplaceAll(rest, "\\\n", " "), "\n")
	words := strings.Fields(command)
	if !ok || len(words) < 2 || words[1] != "serve" {
		t.Fatalf("ExecStart is %q, want fairlead serve", command)
	}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	new(options).addFlags(fs)
	for _, w := range words[2:] {
		name, _, _ := strings.Cut(strings.TrimPrefix(w, "--"), "=")
		if w != "$FAIRLEAD_FLAGS" && fs.Lookup(name) == nil {
			t.Errorf("%q is not a flag of serve", w)
		}
	}
	defaults := must.Get(os.ReadFile("../../deploy/systemd/fairlead.default"))(t)
	for _, named := range regexp.MustCompile(`--[a-z0-9-]+`).FindAllString(string(unit)+string(defaults), -1) {
		if name := strings.TrimPrefix(named, "--"); name != "help" && fs.Lookup(name) == nil {
			t.Errorf("%s is named, but is not a flag of serve", named)
		}
	}
	for _, line := range []string{"Type=notify", "KillMode=mixed", "LimitNOFILE="} {
		if !strings.Contains(string(unit), "\n"+line) {
			t.Errorf("the unit has no line %s…", line)
		}
	}
}

func TestJWTBesideLocalAPIServer(t *testing.T) {
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {url: https://issuer.example.com, audiences: [a]}\n" +
		"  claimMappings: {username: {claim: sub, prefix: ''}}\n"
	file := writeFile(t, filepath.Join(t.TempDir(), "authentication.yaml"), text)
	d := &door{o: &options{authConfig: file}}
	err := d.makeTokens()[0].Take([]byte(text))
	if err == nil || !strings.Contains(err.Error(), "jwt: the local apiserver authenticates all tokens") || strings.Contains(err.Error(), "\n") {
		t.Errorf("jwt with a local apiserver: %v, want one line that names who authenticates tokens", err)
	}
	d.o.registry = "dir:/x"
	if err := d.makeTokens()[0].Take([]byte(text)); err != nil {
		t.Errorf("jwt without a local apiserver: %v", err)
	}
}
