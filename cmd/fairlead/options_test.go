package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// addFlags adds all flags to one set, group by group.
func (o *options) addFlags(fs *pflag.FlagSet) {
	groups := o.flagGroups()
	for _, name := range groups.Order {
		fs.AddFlagSet(groups.FlagSets[name])
	}
}

// parse reads a command line as serve does.
func parse(t *testing.T, args ...string) error {
	t.Helper()
	o := &options{}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	o.addFlags(fs)
	must.Do(t, fs.Parse(args))
	return o.validate()
}

func TestValidate(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "file"), "")
	good := []string{"--tls-cert-file", file, "--tls-private-key-file", file, "--proxy-client-cert-file", file, "--proxy-client-key-file", file}
	for _, tc := range []struct {
		name string
		args []string
		want []string // one line each; nil: no fault
	}{
		{"good", good, nil},
		{"nothing", nil, []string{"--tls-cert-file is required", "--tls-private-key-file is required", "--proxy-client-cert-file is required", "--proxy-client-key-file is required"}},
		{"missing file", append(good, "--client-ca-file", "/no/such/file"), []string{"--client-ca-file: open /no/such/file: no such file or directory"}},
		{"one CA for both", append(good, "--client-ca-file", file, "--requestheader-client-ca-file", file), []string{"--requestheader-allowed-names is required"}},
		{"one CA for both, names", append(good, "--client-ca-file", file, "--requestheader-client-ca-file", file, "--requestheader-allowed-names", "front"), nil},
		{"ports", append(good, "--secure-port", "70000", "--admin-secure-port", "-1"), []string{"--admin-secure-port -1 is not a port", "--secure-port 70000 is not a port"}},
		{"one port for both", append(good, "--secure-port", "6444"), []string{"--secure-port and --admin-secure-port are both 6444"}},
		{"address", append(good, "--bind-address", "here"), []string{`--bind-address "here" is not an IP address`}},
		{"registry", append(good, "--registry", "etcd"), []string{`--registry "etcd" is neither kubernetes, dir:PATH nor etcd:URL`}},
		{"registry of nothing", append(good, "--registry", "dir:"), []string{`--registry "dir:" names no directory`}},
		{"directory", append(good, "--registry", "dir:/x"), nil},
		{"etcd", append(good, "--registry", "etcd:https://a:2379,https://b:2379", "--etcd-cafile", file), nil},
		{"etcd, directory", append(good, "--registry", "etcd:https://a:2379,dir:/x,y"), nil},
		{"neither, directory", append(good, "--registry", "kubernetes,dir:/x"), []string{`--registry "kubernetes,dir:/x": sources must be in order of precedence`}},
		{"directory, cluster", append(good, "--registry", "dir:/x,y,kubernetes", "--local-apiserver", "https://x", "--local-identity", "impersonate"), nil},
		{"etcd, cluster", append(good, "--registry", "etcd:https://a:2379,kubernetes", "--authentication-configmap"), nil},
		{"all three", append(good, "--registry", "etcd:https://a:2379,https://b:2379,dir:/x,kubernetes", "--authorization-mode", "webhook"), nil},
		{"cluster, tokens", append(good, "--registry", "dir:/x,kubernetes", "--token-auth-file", file), []string{"--token-auth-file is for --registry=dir: or etcd:"}},
		{"cluster twice", append(good, "--registry", "dir:/x,kubernetes,kubernetes"), []string{`names kubernetes twice`}},
		{"directory twice", append(good, "--registry", "dir:/x,dir:/y"), []string{`names dir twice`}},
		{"directory before etcd", append(good, "--registry", "dir:/x,etcd:https://a:2379,kubernetes"), []string{"etcd:URL,…, dir:PATH, kubernetes"}},
		{"cluster before directory", append(good, "--registry", "etcd:https://a:2379,kubernetes,dir:/x"), []string{"sources must be in order of precedence"}},
		{"cluster, no directory", append(good, "--registry", "dir:,kubernetes"), []string{"names no directory"}},
		{"cluster, unknown", append(good, "--registry", "consul:/x,kubernetes"), []string{"is neither kubernetes, dir:PATH nor etcd:URL,…, nor a list of them"}},
		{"etcd, unknown, cluster", append(good, "--registry", "etcd:https://a:2379,consul,kubernetes"), []string{"an element is not the URL"}},
		{"etcd, nowhere", append(good, "--registry", "etcd:"), []string{`--registry=etcd: an element is not the URL`}},
		{"etcd, no URL", append(good, "--registry", "etcd:https://a:2379,b:2379"), []string{`--registry=etcd: an element is not the URL`}},
		{"etcd, password", append(good, "--registry", "etcd:https://me:secret@a:2379"), []string{`--registry=etcd: an element is not the URL`}},
		{"etcd, no port", append(good, "--registry", "etcd:https://a:2379,https://b"), []string{"--registry=etcd: https://b has no port"}},
		{"etcd, half a key pair", append(good, "--registry", "etcd:https://a:2379", "--etcd-certfile", file), []string{"--etcd-certfile and --etcd-keyfile go together"}},
		{"etcd, plain text", append(good, "--registry", "etcd:http://a:2379", "--etcd-cafile", file), []string{"http://a:2379 is plain text"}},
		{"etcd, both", append(good, "--registry", "etcd:https://a:2379,http://b:2379"), []string{"all members must be https, or all http"}},
		{"directory, cluster, status", append(good, "--registry", "dir:/x,kubernetes", "--kubeconfig", file, "--write-status"), []string{"--write-status is for --registry=kubernetes"}},
		{"directory beside a cluster, status", append(good, "--registry", "dir:/x", "--kubeconfig", file, "--write-status"), []string{"--write-status is for --registry=kubernetes"}},
		{"etcd, status", append(good, "--registry", "etcd:https://a:2379", "--kubeconfig", file, "--write-status"), []string{"--write-status is for --registry=kubernetes"}},
		{"keys of etcd", append(good, "--etcd-cafile", file), []string{"--etcd-cafile needs --registry=etcd:"}},
		{"directory, local apiserver", append(good, "--registry", "dir:/x", "--local-apiserver", "https://x"), []string{"--local-apiserver needs --kubeconfig"}},
		{"directory, ConfigMap", append(good, "--registry", "dir:/x", "--authentication-configmap"), []string{"--authentication-configmap needs --kubeconfig"}},
		{"directory, events", append(good, "--registry", "dir:/x", "--emit-events"), []string{"--write-status and --emit-events need --kubeconfig"}},
		{"directory, webhook", append(good, "--registry", "dir:/x", "--authorization-mode", "webhook"), []string{"--authorization-mode=webhook needs --kubeconfig"}},
		{"directory, tokens", append(good, "--registry", "dir:/x", "--token-auth-file", file, "--authentication-config", file), nil},
		{"tokens of a cluster", append(good, "--token-auth-file", file), []string{"--token-auth-file is for --registry=dir: or etcd: without --kubeconfig"}},
		{"missing configuration", append(good, "--authentication-config", "/no/such/file"), []string{"--authentication-config: open /no/such/file: no such file or directory"}},
		{"directory, roles", append(good, "--registry", "dir:/x", "--authorization-mode", "RBAC"), nil},
		{"directory, anything", append(good, "--registry", "dir:/x", "--authorization-mode", "AlwaysAllow"), nil},
		{"directory and local apiserver", append(good, "--registry", "dir:/x", "--kubeconfig", file, "--local-apiserver", "https://x", "--authorization-mode", "webhook"), nil},
		{"roles of a cluster", append(good, "--authorization-mode", "RBAC"), []string{"--authorization-mode=RBAC needs --registry=dir:PATH"}},
		{"anything in a cluster", append(good, "--authorization-mode", "AlwaysAllow"), []string{"--authorization-mode=AlwaysAllow needs --registry=dir:PATH"}},
		{"authorization", append(good, "--authorization-mode", "Node"), []string{`--authorization-mode "Node" is neither webhook, RBAC, backend nor AlwaysAllow`}},
		{"impersonation", append(good, "--local-identity", "impersonate", "--impersonate-refuse-groups", "system:*", "--impersonate-refuse-users", "-", "--authentication-config", file), nil},
		{"identity", append(good, "--local-identity", "token"), []string{`--local-identity "token" is neither front-proxy nor impersonate`}},
		{"impersonation, alone", append(good, "--local-identity", "impersonate", "--registry", "dir:/x"), []string{"--local-identity=impersonate needs --kubeconfig"}},
		{"impersonation, roles of a directory", append(good, "--local-identity", "impersonate", "--registry", "dir:/x", "--kubeconfig", file, "--authorization-mode", "RBAC"), []string{"--local-identity=impersonate needs --authorization-mode=webhook or backend"}},
		{"impersonation, anybody", append(good, "--local-identity", "impersonate", "--registry", "dir:/x", "--kubeconfig", file, "--authorization-mode", "AlwaysAllow"), []string{"--local-identity=impersonate needs --authorization-mode=webhook or backend"}},
		{"impersonation, backend", append(good, "--local-identity", "impersonate", "--authorization-mode", "backend"), nil},
		{"nobody to refuse", append(good, "--impersonate-refuse-users", "root"), []string{"--impersonate-refuse-users and --impersonate-refuse-groups need --local-identity=impersonate"}},
		{"entrypoint", append(good, "--publish-kubernetes-endpoints", "--kubeconfig", file, "--advertise-address", "192.0.2.1"), nil},
		{"entrypoint, bound", append(good, "--publish-kubernetes-endpoints", "--local-apiserver", "https://x", "--bind-address", "192.0.2.1"), nil},
		{"entrypoint, any address", append(good, "--publish-kubernetes-endpoints", "--kubeconfig", file), []string{`--advertise-address: address "0.0.0.0" cannot be reached by others`}},
		{"entrypoint, loopback", append(good, "--publish-kubernetes-endpoints", "--kubeconfig", file, "--advertise-address", "::1"), []string{`address "::1" cannot be reached by others`}},
		{"entrypoint, name", append(good, "--publish-kubernetes-endpoints", "--kubeconfig", file, "--advertise-address", "here"), []string{"--advertise-address: ParseAddr"}},
		{"entrypoint, itself", append(good, "--publish-kubernetes-endpoints", "--advertise-address", "192.0.2.1"), []string{"would lead Fairlead to itself"}},
		{"entrypoint, alone", append(good, "--publish-kubernetes-endpoints", "--registry", "dir:/x"), []string{"--publish-kubernetes-endpoints needs a local apiserver"}},
		{"audit", append(good, "--audit-log-path", "-", "--audit-policy-file", file, "--audit-log-maxsize", "100"), nil},
		{"audit without policy", append(good, "--audit-log-path", "-"), []string{"--audit-log-path needs --audit-policy-file"}},
		{"audit without log", append(good, "--audit-policy-file", file), []string{"--audit-policy-file needs --audit-log-path"}},
		{"audit", append(good, "--audit-log-format", "xml", "--audit-log-maxage", "-1"), []string{"--audit-log-maxage, --audit-log-maxbackup and --audit-log-maxsize cannot be negative", `--audit-log-format "xml" is neither json nor legacy`}},
		{"access log, failures only", append(good, "--access-log-sample", "0"), nil},
		{"access log", append(good, "--access-log-sample", "1.5"), []string{"--access-log-sample 1.5 is not between 0 and 1"}},
		{"tracing", append(good, "--tracing-config-file", "/no/such/file"), []string{"--tracing-config-file: open /no/such/file: no such file or directory"}},
		{"goaway", append(good, "--goaway-chance", "0.5"), []string{"--goaway-chance 0.5 is not between 0 and 0.02"}},
		{"negative", append(good, "--request-timeout", "-1s", "--authorization-webhook-cache-unauthorized-ttl", "-2s", "--max-requests-inflight", "-1"), []string{"--authorization-webhook-cache-unauthorized-ttl -2s is negative", "--request-timeout -1s is negative", "limits cannot be negative"}},
		{"sni", append(good, "--tls-sni-cert-key", file), []string{"is not certfile,keyfile[:name,…]"}},
		{"cipher", append(good, "--tls-cipher-suites", "TLS_RSA_WITH_RC4_128_SHA"), []string{"is not a cipher suite that is safe to use"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := parse(t, tc.args...)
			if len(tc.want) == 0 {
				must.Do(t, err)
				return
			}
			if lines := strings.Split(fmt.Sprint(err), "\n"); err == nil || len(lines) != len(tc.want) {
				t.Fatalf("%d lines, want %d:\n%v", len(lines), len(tc.want), err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is missing in:\n%v", want, err)
				}
			}
		})
	}
}

// Requests under way may end as late as the flags let them, 0 being the default.
func TestDrainWaitsForRequests(t *testing.T) {
	for _, tt := range []struct{ requests, watches, want time.Duration }{
		{10 * time.Second, 0, 10 * time.Second}, {0, 0, time.Minute}, {10 * time.Second, time.Minute, 61 * time.Second},
	} {
		o := &options{requestTimeout: tt.requests, watchGrace: tt.watches}
		check.Same(t, tt.want, o.drainLimit(), "the longest drain, with requests of %s and watches of %s", tt.requests, tt.watches)
	}
}

// A mistake in the command line is a usage error, which exits with 2 before anything listens.
func TestUsageErrors(t *testing.T) {
	cmd := root()
	for _, args := range [][]string{{"serve", "--secure-port", "0"}, {"serve", "--no-such-flag"}, {"serve", "extra"}} {
		cmd.SetArgs(args)
		if err := cmd.ExecuteContext(t.Context()); !cli.IsUsage(err) {
			t.Errorf("%v: %T: %v", args, err, err)
		}
	}
}

// docs/flags.md is generated from the flags.
func TestFlagsDocument(t *testing.T) {
	const file, begin, end = "../../docs/flags.md", "<!-- flags -->\n", "<!-- end of flags -->"
	data := must.Get(os.ReadFile(file))(t)
	before, rest, ok := strings.Cut(string(data), begin)
	have, after, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("docs/flags.md has no %q or no %q", begin, end)
	}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	fs.SortFlags = false
	new(options).addFlags(fs)
	var b strings.Builder
	b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	fs.VisitAll(func(f *pflag.Flag) {
		def := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			def = "`" + strings.Trim(f.DefValue, "[]") + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, def, strings.ReplaceAll(f.Usage, "|", `\|`))
	})
	if *update {
		must.Do(t, os.WriteFile(file, []byte(before+begin+b.String()+end+after), 0o644))
		return
	}
	if have != b.String() {
		t.Errorf("docs/flags.md differs from the flags; go test ./cmd/fairlead -run TestFlagsDocument -update writes:\n%s", b.String())
	}
}
