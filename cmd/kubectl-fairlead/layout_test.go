package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

// install is init --layout after its preflight, with what somebody types on a terminal. Without words there is none.
func (c *land) install(t *testing.T, i *installer, words ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	kube := c.client()
	i.print, i.deploy, i.found, i.wrote, i.args = &out, "../../deploy", &linter{survey: look(t.Context(), &rest.Config{Host: c.server}, kube)}, false, nil
	i.found.published(i.found.survey)
	if words != nil {
		i.lines = bufio.NewScanner(strings.NewReader(strings.Join(words, "\n")))
	}
	err := i.validate()
	if err == nil {
		err = i.choose()
	}
	if err == nil {
		err = i.write()
	}
	return strings.ReplaceAll(out.String(), i.out, "OUT"), err
}

// The preflight asks the cluster of init's flags alone, not kubectl's current one.
func TestPreflightOfOneCluster(t *testing.T) {
	other := newFront(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, other.Server))
	cfg := must.Get(clientcmd.BuildConfigFromFlags("", clusterOf(t, apiserver.New())))(t)
	newLinter(&cliflag.NamedFlagSets{}).inspect(t.Context(), cfg)
	check.Same(t, 0, len(other.asked), "requests to another cluster")
}

// built returns what kustomize makes of the folders that an installer has written.
func built(t *testing.T, i *installer) (all string) {
	t.Helper()
	for _, folder := range []string{"", "node"} {
		folder = filepath.Join(i.out, folder)
		if _, err := os.Stat(folder); err != nil {
			continue
		}
		options := krusty.MakeDefaultOptions()
		options.LoadRestrictions = types.LoadRestrictionsNone // as the command says for node
		m := must.Get(krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), folder))(t)
		all += string(must.Get(m.AsYaml())(t))
	}
	return all
}

// Each layout refers to what ships, with what the cluster needs. Written again, nothing changes.
func TestLayouts(t *testing.T) {
	vip := func(c *land) {
		p := static("cp2", "haproxy", "--listen=:8443", "--admin-port=9443")
		c.pods = append(c.pods, p)
	}
	for _, tt := range []struct {
		name      string
		installer installer
		change    func(c *land)
		words     []string
		args      string // that Fairlead gets besides those that ship, sorted
		has       string // an expression for what kustomize makes of it
		next      string // an expression for the last commands
	}{
		{"the plainest", installer{layout: "control-plane"}, nil, nil, "", "kind: DaemonSet", `kubectl apply -k OUT\nkubectl -n kube-system rollout status`},
		{"ports that are taken", installer{layout: "control-plane"}, vip, nil, "--secure-port=10443", `containerPort: 10443\n +hostPort: 10443\n +name: https\n +- containerPort: 8444\n +hostPort: 8444`, "lint"},
		{"ports of an answer", installer{layout: "control-plane"}, vip, []string{"7443"}, "--secure-port=7443", `containerPort: 7443`, "lint"},
		{"ports of flags", installer{layout: "static-pod", ports: [2]int32{12345, 12346}}, vip, nil, "--admin-secure-port=12346 --secure-port=12345", `(?s)kind: Pod\n.*hostPort: 12345\n.*hostPort: 12346`, `OUT/node \| ssh root@NODE 'cat > fairlead.yaml && test -s fairlead.yaml && mv`},
		{"a load balancer is published", installer{layout: "control-plane"}, func(c *land) {
			c.slices.Endpoints[1].Addresses[0] = "127.0.0.9"
			c.nodes[2].Status.Addresses[1].Address = "2001:db8::3"
		}, nil, "--local-apiserver=https://127.0.0.1:6443 --local-apiserver=https://127.0.0.2:6443 --local-apiserver=https://[2001:db8::3]:6443 --local-apiservers-from=", "kind: DaemonSet", "lint"},
		{"components", installer{layout: "control-plane", components: []string{"entrypoint", "audit"}}, nil, nil,
			"--advertise-address=$(HOST_IP) --audit-log-path=- --audit-policy-file=/etc/fairlead/audit/policy.yaml --local-apiservers-from=lease --publish-kubernetes-endpoints", "name: fairlead-audit", "lint"},
		{"leases without the entrypoint", installer{layout: "static-pod", serversFrom: "lease"}, nil, nil, "--local-apiservers-from=lease", "name: fairlead-servers", "OUT/node"},
		{"components of a static pod", installer{layout: "static-pod", components: []string{"entrypoint", "write-status", "events", "monitoring"}}, nil, nil,
			"--advertise-address=$(HOST_IP) --emit-events --local-apiservers-from=lease --publish-kubernetes-endpoints --write-status", `(?s)name: system:fairlead-status\nsubjects:\n- kind: ServiceAccount\n.*?- apiGroup: rbac.authorization.k8s.io\n +kind: User\n +name: system:fairlead`, "(?s)< ../../deploy/systemd/fairlead-kubeconfig.*systemctl start fairlead-kubeconfig.service"},
		{"behind a load balancer", installer{layout: "load-balancer"}, nil, nil, "", "kind: Deployment", "create secret tls fairlead-front-proxy-client"},
		{"managed", installer{layout: "managed", names: []string{"a.example.com", "b"}, components: []string{"renew"}}, nil, nil, "", `(?s)kind: CronJob\n.*activeDeadlineSeconds: `, "init --serving-names=a.example.com,b\n"},
		{"managed, with cert-manager", installer{layout: "managed", components: []string{"cert-manager"}}, nil, []string{"not asked"}, "", "kind: Issuer", `Next:\nkubectl apply -k OUT\nkubectl fairlead lint\n`},
		{"control plane, with cert-manager", installer{layout: "control-plane", components: []string{"cert-manager"}}, nil, nil, "", "kind: Issuer", `Next:\nkubectl apply -k OUT\n`},
		{"behind", installer{layout: "behind", cluster: [2]string{"a b", "kind"}}, nil, nil, "", "--behind=kube-system/fairlead", `apply -k OUT --kubeconfig="a b" --context="kind"\n(?s:.*)kubectl fairlead adopt NAME --kubeconfig="a b" --context="kind"\n`},
		{"managed, with an answer", installer{layout: "managed"}, nil, []string{"front.example.com"}, "", "system:fairlead-impersonate", "init --serving-names=front.example.com\n"},
		{"etcd", installer{layout: "etcd", etcd: []string{"https://e1:2379", "https://e2:2379"}, components: []string{"audit"}}, nil, nil,
			"--audit-log-path=- --audit-policy-file=/etc/fairlead/audit/policy.yaml --registry=etcd:https://e1:2379,https://e2:2379,dir:/etc/fairlead/registry", `(?s)name: fairlead-etcd-front\n.*mountPath: /etc/fairlead/audit\n`, "fairlead-etcd-client"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // kustomize is slow
			c, i := newLand(t), &tt.installer
			if tt.change != nil {
				tt.change(c)
			}
			i.out = filepath.Join(t.TempDir(), "own")
			out := must.Get(c.install(t, i, tt.words...))(t)
			check.Same(t, true, regexp.MustCompile(tt.next).MatchString(out) && !strings.Contains(out, "unchanged"), "it prints\n%s", out)
			text := built(t, i)
			check.Same(t, true, regexp.MustCompile(tt.has).MatchString(text), "no %s in\n%s", tt.has, text)
			shipped := flagsIn(built(t, shippedOnly(t, i.layout)))
			got := slices.DeleteFunc(flagsIn(text), func(f string) bool { return slices.Contains(shipped, f) })
			check.Same(t, tt.args, strings.Join(got, " "), "arguments")
			chosen := i.ports
			again := must.Get(c.install(t, i, tt.words...))(t)
			check.Same(t, true, strings.HasSuffix(again, "nothing changed\n") && !strings.Contains(again, "written") && chosen == i.ports, "again, it prints\n%s", again)
		})
	}
}

// flagsIn returns the sorted flags of Fairlead in manifests.
func flagsIn(manifests string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^ +- (--\S+)$`).FindAllStringSubmatch(manifests, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return all
}

// shippedOnly writes a layout's manifests as they ship.
func shippedOnly(t *testing.T, layout string) *installer {
	t.Helper()
	i := &installer{layout: layout, deploy: "../../deploy", out: filepath.Join(t.TempDir(), "shipped"), print: &bytes.Buffer{}, ports: [2]int32{securePort, adminPort}}
	must.Do(t, i.write())
	return i
}

// A file with other content is replaced only if somebody says so, and stays beside the new one.
func TestLayoutKeepsWhatItReplaces(t *testing.T) {
	c, i := newLand(t), &installer{layout: "control-plane", serversFrom: "lease", out: t.TempDir()}
	file := filepath.Join(i.out, "kustomization.yaml")
	must.Get(c.install(t, i))(t)
	ours := string(must.Get(os.ReadFile(file))(t))
	theirs := strings.Replace(ours, "=lease", "=endpointslice", 1)
	must.Do(t, os.WriteFile(file, []byte(theirs), 0o600))
	replaced := 0
	for _, tt := range []struct {
		name    string
		words   []string
		yes     bool
		replace bool
	}{{"nobody is there", nil, false, false}, {"no", []string{""}, false, false}, {"yes", []string{"Yes"}, false, true}, {"--yes", nil, true, true}} {
		must.Do(t, os.WriteFile(file, []byte(theirs), 0o600))
		i.yes, i.lines = tt.yes, nil
		out, err := c.install(t, i, tt.words...)
		if tt.replace != (err == nil) || strings.Count(out, "\n- ") != 0 || !strings.HasPrefix(out, "- - patch: ") || !strings.Contains(out, "\n+ - patch: ") {
			t.Errorf("%s: %v, it prints\n%s", tt.name, err, out)
		}
		want := map[bool]string{true: ours, false: theirs}[tt.replace]
		check.Same(t, want, string(must.Get(os.ReadFile(file))(t)), "%s: the file", tt.name)
		if tt.replace {
			replaced++
		}
		kept := must.Get(filepath.Glob(file + "~*"))(t)
		check.Same(t, replaced, len(kept), "%s: files that it replaced", tt.name)
		for _, older := range kept {
			check.Same(t, theirs, string(must.Get(os.ReadFile(older))(t)), "%s: what it replaced", tt.name)
		}
	}
}

// What cannot be answered by a proposal is an error without a terminal, and so is what cannot work.
func TestLayoutErrors(t *testing.T) {
	for _, tt := range []struct {
		name      string
		installer installer
		change    func(c *land)
		words     []string
		want      string
	}{
		{"no such layout", installer{layout: "sideways"}, nil, nil, `--layout "sideways" is none of control-plane, static-pod, load-balancer, managed, behind, etcd`},
		{"no such component", installer{layout: "control-plane", components: []string{"tea"}}, nil, nil, "components/tea/kustomization.yaml: no such file"},
		{"a component of others", installer{layout: "static-pod", components: []string{"audit"}}, nil, nil, "component audit is not for --layout=static-pod"},
		{"components of a cluster's", installer{layout: "etcd", components: []string{"audit", "events", "policy", "monitoring-own-ca"}}, nil, nil, "component events is not for --layout=etcd\ncomponent policy is not for --layout=etcd\ncomponent monitoring-own-ca is not for"},
		{"a scrape by another CA", installer{layout: "managed", components: []string{"monitoring"}}, nil, nil, "component monitoring is not for --layout=managed"},
		{"ports of an address of its own", installer{layout: "managed", ports: [2]int32{1, 0}}, nil, nil, "are for control-plane and static-pod"},
		{"no such way", installer{layout: "control-plane", serversFrom: "DNS"}, nil, nil, `"DNS" is none of endpointslice, lease, nodes`},
		{"a URL as a name", installer{layout: "managed", names: []string{"https://front"}}, nil, nil, `--serving-names: "https://front" is neither a DNS name nor an IP address`},
		{"names that cert-manager would not know", installer{layout: "managed", components: []string{"cert-manager"}, names: []string{"a"}}, nil, nil, "--serving-names: patch Certificate fairlead-serving instead"},
		{"no etcd", installer{layout: "etcd"}, nil, nil, "--layout=etcd needs --etcd-servers"},
		{"an etcd that serve refuses", installer{layout: "etcd", etcd: []string{"https://e1:2379", "http://e2:2379"}}, nil, nil, `needs --etcd-servers=https://HOST:PORT,…, not "http://e2:2379"`},
		{"an etcd without a port", installer{layout: "etcd"}, nil, []string{"https://e1"}, `not "https://e1"`},
		{"no nodes", installer{layout: "static-pod"}, func(c *land) { c.nodes = nil }, nil, "no node with the label node-role.kubernetes.io/control-plane was seen, on which --layout=static-pod would run"},
		{"one port for both", installer{layout: "static-pod", ports: [2]int32{8444, 0}}, nil, nil, "--secure-port and --admin-secure-port are both 8444"},
		{"a port that is none", installer{layout: "control-plane", ports: [2]int32{65536, 0}}, nil, nil, "a port is a number from 1024 to 65535"},
		{"a port that pods may not use", installer{layout: "control-plane", ports: [2]int32{443, 0}}, nil, nil, "a port is a number from 1024 to 65535"},
		{"a port that is taken", installer{layout: "static-pod", ports: [2]int32{0, 7443}}, func(c *land) { c.pods = append(c.pods, static("cp1", "x", "--port=7443")) }, nil, "--admin-secure-port: port 7443 is used by pod kube-system/x-cp1 on cp1"},
		{"an answer that is taken", installer{layout: "static-pod"}, func(c *land) { c.pods = append(c.pods, static("cp1", "x", "--port=8443", "--metrics-port=7443")) }, []string{"7443"}, "--secure-port: port 7443 is used by pod kube-system/x-cp1 on cp1"},
		{"an answer that is none", installer{layout: "static-pod"}, func(c *land) { c.pods = append(c.pods, static("cp1", "x", "--port=8443")) }, []string{"any"}, "--secure-port: expected integer"},
	} {
		c, i := newLand(t), &tt.installer
		i.out = filepath.Join(t.TempDir(), "own")
		if tt.change != nil {
			tt.change(c)
		}
		_, err := c.install(t, i, tt.words...)
		check.Fault(t, tt.want, err, "%s", tt.name)
		_, err = os.Stat(i.out)
		check.Fault(t, "no such file", err, "%s: the folder", tt.name)
	}
}

// What static pods get for a component is what the component adds to other workloads.
func TestPodFlags(t *testing.T) {
	for component, flags := range podFlags() {
		text := string(must.Get(os.ReadFile("../../deploy/components/" + component + "/kustomization.yaml"))(t))
		var adds []string
		for _, m := range regexp.MustCompile(`args/-, value: (--[^}]+)}`).FindAllStringSubmatch(text, -1) {
			adds = append(adds, m[1])
		}
		check.Same(t, adds, flags, "component %s", component)
	}
}
