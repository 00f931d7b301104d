package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/cmd/rights"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// bound is after deploy/base was applied.
func (c *land) bound() { c.granted, c.more = all, []runtime.Object{account()} }

func all(string, *authorizationv1.ResourceAttributes) bool { return true }

func none(string, *authorizationv1.ResourceAttributes) bool { return false }

func (c *land) find(t *testing.T, l *linter) string {
	t.Helper()
	kube := c.client()
	l.output = "text"
	l.preflight(t.Context(), look(t.Context(), &rest.Config{Host: c.server}, kube), kube)
	return reported(l)
}

// reported is the report; its error says only whether it has an error.
func reported(l *linter) string {
	var out bytes.Buffer
	_ = l.report(&out)
	return out.String()
}

// Before and after an installation, what an administrator is told.
func TestPreflight(t *testing.T) {
	few := "to do: user " + accountUser + ": " + strconv.Itoa(len(rights.Needed(rights.Shipped()))) + " of its " + strconv.Itoa(len(rights.Needed(rights.Shipped()))) +
		" rights are not granted yet; kubectl apply -k deploy/base, which each layout of kubectl fairlead init includes\n"
	reviews := func(_ string, r *authorizationv1.ResourceAttributes) bool {
		return r.Resource != "subjectaccessreviews"
	}
	for _, tt := range []struct {
		name   string
		change func(c *land)
		linter linter
		want   string
	}{
		{"before", func(c *land) { c.granted, c.more = none, nil }, linter{}, few},
		{"installed", func(*land) {}, linter{}, ""},
		{"a right is gone", func(c *land) { c.granted = reviews }, linter{},
			"error: deploy/base/rbac.yaml:15: ClusterRole system:fairlead: " + accountUser + " may not create subjectaccessreviews.authorization.k8s.io: users without system:masters get 503 from extension servers and for discovery; " +
				"grant it again: kubectl apply -f deploy/base/rbac.yaml, or your kustomization with it\n"},
		{"impersonation of some users only", func(c *land) {
			c.granted = func(_ string, r *authorizationv1.ResourceAttributes) bool { return r.Resource != "users" }
		}, linter{Shared: cli.Shared{LocalIdentity: cli.Impersonate}},
			"warning: deploy/overlays/managed/rbac.yaml:8: ClusterRole system:fairlead-impersonate: " + accountUser + " may not impersonate users of every name, which is right if only some are granted: " +
				"users with certificates, or tokens that Fairlead verifies, get 403; grant it again: kubectl apply -f deploy/overlays/managed/rbac.yaml, or your kustomization with it\n"},
		{"Fairlead's own kubeconfig", func(c *land) { c.user, c.granted, c.more, c.nodes, c.pods = podUser, reviews, nil, nil, nil }, linter{},
			"error: deploy/base/rbac.yaml:15: ClusterRole system:fairlead: system:fairlead may not create subjectaccessreviews.authorization.k8s.io: users without system:masters get 503 from extension servers and for discovery; " +
				"grant it again: kubectl apply -k deploy/static-pod, or your kustomization with it\n"},
		{"another account", func(c *land) {
			c.granted = func(user string, _ *authorizationv1.ResourceAttributes) bool { return user == "own" }
		}, linter{account: "own"}, ""},
		{"a feature of the replicas", func(c *land) {
			c.pods = append(c.pods, runs("cp1", "--write-status", "--emit-events=true"))
			c.granted = func(_ string, r *authorizationv1.ResourceAttributes) bool { return r.Subresource == "" }
		}, linter{}, "error: deploy/components/write-status/rbac.yaml:6: ClusterRole system:fairlead-status: " + accountUser + " may not patch apiservices/status.apiregistration.k8s.io: " +
			"the condition fairlead.dev/Available is not written; grant it again: kubectl apply -f deploy/components/write-status/rbac.yaml, or your kustomization with it\n"},
		{"a feature that is off", func(c *land) {
			c.pods = append(c.pods, runs("cp1", "--write-status=false"))
			c.granted = func(_ string, r *authorizationv1.ResourceAttributes) bool { return r.Subresource == "" }
		}, linter{}, ""},
		{"a static pod's user", func(c *land) {
			c.pods = append(c.pods, runs("cp1", "--kubeconfig=/etc/kubernetes/fairlead.conf"))
			c.granted = func(user string, _ *authorizationv1.ResourceAttributes) bool { return user == podUser }
		}, linter{}, ""},
		{"a feature of static pods", func(c *land) {
			c.pods = append(c.pods, runs("cp1", "--kubeconfig=/etc/kubernetes/fairlead.conf", "--write-status"))
			c.granted = func(_ string, r *authorizationv1.ResourceAttributes) bool { return r.Subresource == "" }
		}, linter{}, "error: deploy/components/write-status/rbac.yaml:6: ClusterRole system:fairlead-status: " + podUser + " may not patch apiservices/status.apiregistration.k8s.io: " +
			"the condition fairlead.dev/Available is not written; grant it again: apply your kustomization with deploy/components/write-status and deploy/components/static-pod\n"},
		{"nodes out of sight", func(c *land) { c.forbidden = "nodes" }, linter{},
			`warning: preflight: a part was not checked: reading the control plane's nodes: nodes is forbidden: no role; use an administrator's kubeconfig` + "\n"},
		{"endpoints out of sight", func(c *land) { c.forbidden = "endpointslices" }, linter{},
			`warning: preflight: a part was not checked: reading the EndpointSlices of the Service kubernetes: endpointslices is forbidden: no role; use an administrator's kubeconfig` + "\n"},
		{"reviews refused", func(c *land) { c.forbidden = "subjectaccessreviews" }, linter{},
			"warning: user " + accountUser + ": its rights were not checked: subjectaccessreviews is forbidden: no role; use an administrator's kubeconfig, or Fairlead's own\n"},
		{"reviews undecided", func(c *land) { c.granted, c.undecided = none, "no route" }, linter{},
			"warning: user " + accountUser + ": its rights were not checked: kube-apiserver could not decide: " +
				"no route; see kube-apiserver's log: an authorizer, such as its webhook, fails\n"},
		{"granted, undecided by another", func(c *land) { c.undecided = "no route" }, linter{}, ""},
		{"an old release", func(c *land) { c.release = "v1.29.3+k3s1" }, linter{},
			"warning: kube-apiserver: its release v1.29.3+k3s1 is not among those that Fairlead is tested with, 1.30 to 1.37; try Fairlead with this release on a cluster that nobody needs\n"},
		{"the newest release", func(c *land) { c.release = "v1.37.9" }, linter{}, ""},
		{"the oldest release", func(c *land) { c.release = "v1.30.0" }, linter{}, ""},
		{"HAProxy of kubeadm's guide", func(c *land) {
			p := static("cp2", "haproxy")
			p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8443)}}}
			c.pods = append(c.pods, p)
		}, linter{}, "to do: port 8443: pod kube-system/haproxy-cp2 on cp2 uses it, so no Fairlead can on that node; choose another one: kubectl fairlead init --layout=… --secure-port=…\n"},
		{"kube-vip", func(c *land) {
			p := static("cp2", "kube-vip", "manager")
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "lb_port", Value: "8443"}, {Name: "prometheus_server", Value: ":8444"}, {Name: "vip_cidr", Value: "32"}}
			c.pods = append(c.pods, p)
		}, linter{}, "to do: port 8443: pod kube-system/kube-vip-cp2 on cp2 uses it, so no Fairlead can on that node; choose another one: kubectl fairlead init --layout=… --secure-port=…\n" +
			"to do: port 8444: pod kube-system/kube-vip-cp2 on cp2 uses it, so no Fairlead can on that node; choose another one: kubectl fairlead init --layout=… --admin-secure-port=…\n"},
		{"beside a Fairlead that runs", func(c *land) {
			declares, probed := static("cp1", "proxy", "--listen=:9443"), static("cp3", "balancer")
			declares.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8444}}
			probed.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9443)}}}
			c.pods = append(c.pods, runs("cp1", "--secure-port=9443"), declares, probed)
		}, linter{}, "warning: port 9443: pod kube-system/proxy-cp1 on cp1 uses it, so no Fairlead can on that node; choose another one: kubectl fairlead init --layout=… --secure-port=…\n" +
			"warning: port 9443: pod kube-system/balancer-cp3 on cp3 uses it, so no Fairlead can on that node; choose another one: kubectl fairlead init --layout=… --secure-port=…\n" +
			"warning: port 8444: pod kube-system/proxy-cp1 on cp1 uses it, so no Fairlead can on that node; choose another one: kubectl fairlead init --layout=… --admin-secure-port=…\n"},
		{"ports of pods' own addresses", func(c *land) {
			p := static("cp1", "proxy", "--listen=:8443")
			p.Spec.HostNetwork, p.Spec.Containers[0].Ports = false, []corev1.ContainerPort{{ContainerPort: 8444}}
			c.pods = append(c.pods, p)
		}, linter{}, ""},
		{"a replica with an address of its own", func(c *land) {
			mine, p := runs("cp1"), static("cp1", "proxy")
			mine.Spec.HostNetwork, p.Spec.Containers[0].Ports = false, []corev1.ContainerPort{{ContainerPort: 8443, HostPort: 8443}}
			c.pods = append(c.pods, mine, p)
		}, linter{}, ""},
		{"kube-apiservers differ", func(c *land) {
			c.pods[2].Spec.Containers[0].Command = append(c.pods[2].Spec.Containers[0].Command, "--requestheader-uid-headers=X-Remote-Uid", "--requestheader-allowed-names=other")
		}, linter{}, `warning: kube-apiserver: --requestheader-allowed-names is "front-proxy-client" on cp1, and "other" on cp3; give all kube-apiservers the same flags` + "\n" +
			`warning: kube-apiserver: --requestheader-uid-headers is "" on cp1, and "X-Remote-Uid" on cp3; give all kube-apiservers the same flags` + "\n"},
		{"an egress proxy, and no endpoints", func(c *land) {
			for _, p := range c.pods {
				p.Spec.Containers[0].Command = append(p.Spec.Containers[0].Command, "--egress-selector-config-file=/etc/egress.yaml", "--endpoint-reconciler-type=none")
			}
		}, linter{}, "to do: kube-apiserver: it reaches pods by an egress proxy, so its nodes may have no route to them; give Fairlead --egress-selector-config-file too, or a route to pods\n" +
			"warning: Service default/kubernetes: neither kube-apiserver nor Fairlead keeps its endpoints; remove --endpoint-reconciler-type=none from kube-apiserver, or let Fairlead publish itself (deploy/components/entrypoint)\n"},
		{"a load balancer is published", func(c *land) {
			c.slices.Endpoints[2].Addresses[0] = "127.0.0.1"
			c.nodes[0].Status.Addresses[1].Address = "127.0.0.9"
		}, linter{}, "to do: Service default/kubernetes: it has no endpoint of node cp1; " + otherServers + "to do: Service default/kubernetes: it has no endpoint of node cp3; " + otherServers +
			"to do: Service default/kubernetes: its endpoint 127.0.0.1:PORT is no control-plane node's: it may be a load balancer, which will lead to Fairlead itself; " + otherServers},
		{"Fairlead is published", func(c *land) {
			c.pods = append(c.pods, runs("cp1", "--publish-kubernetes-endpoints"))
			c.slices.Endpoints = c.slices.Endpoints[:1]
		}, linter{}, ""},
		{"one node of the other family", func(c *land) {
			c.nodes[1].Status.Addresses = slices.Insert(c.nodes[1].Status.Addresses, 1, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "2001:db8::2"})
		}, linter{}, "to do: nodes: the first address of cp3 is IPv4, and that of cp2 IPv6: no client reaches all replicas by one family; give all control-plane nodes the same family first (kubelet's --node-ip)\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newLand(t)
			c.bound()
			tt.change(c)
			port := fmt.Sprintf(":%d is", *c.slices.Ports[0].Port)
			check.Same(t, tt.want, strings.ReplaceAll(c.find(t, &tt.linter), port, ":PORT is"), "found")
		})
	}
}

const otherServers = "name the kube-apiservers by --local-apiserver instead of --local-apiservers-from=endpointslice, or correct their --advertise-address\n"

// The certificates of kube-apiservers are compared with the names in kubeconfigs: the
// administrator's, and the one for nodes that join.
func TestPreflightNames(t *testing.T) {
	for _, tt := range []struct {
		name, server string
		names        []string // of the certificates
		linter       linter
		want         string // the name that they lack. Empty: none
	}{
		{"all there", "https://lb.example.com:6443", []string{"lb.example.com", "join.example.com", "192.0.2.7"}, linter{names: []string{"192.0.2.7"}}, ""},
		{"an administrator's", "https://lb.example.com:6443", []string{"join.example.com"}, linter{}, "lb.example.com"},
		{"of nodes", "https://127.0.0.1:6443", nil, linter{}, "join.example.com"},
		{"of kubectl proxy", "http://127.0.0.9:8001", []string{"join.example.com"}, linter{}, ""},
		{"of Rancher", "https://rancher.example.com/k8s/clusters/c-1", []string{"join.example.com"}, linter{}, ""},
		{"given", "127.0.0.1:6443", []string{"join.example.com"}, linter{names: []string{"api.example.com"}}, "api.example.com"},
	} {
		c := newLand(t, tt.names...)
		c.bound()
		c.server = tt.server
		c.more = append(c.more, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"},
			Data:       map[string]string{"kubeconfig": "{apiVersion: v1, kind: Config, clusters: [{name: '', cluster: {server: 'https://join.example.com:6443'}}]}"},
		})
		out := c.find(t, &tt.linter)
		lines := strings.Count(out, fmt.Sprintf(": clients that use %q will refuse it: ", tt.want))
		if all := strings.Count(out, "\n"); lines != all || all != 0 && all != len(c.nodes) || (all == 0) != (tt.want == "") {
			t.Errorf("%s: want %q, found:\n%s", tt.name, tt.want, out)
		}
	}
	c, l := newLand(t), &linter{names: []string{"cp1"}}
	c.bound()
	l.Certs.Serving.Cert, l.Certs.Serving.Key = "apiserver.crt", "apiserver.key" // of that node; there is none here
	l.own()
	check.Lacks(t, c.find(t, l), `clients that use "cp1"`)
	own := fmt.Sprintf("https://127.0.0.2:%d", *c.slices.Ports[0].Port)
	for name, want := range map[string][]string{"": nil, "api.example.com": {"api.example.com"}} {
		found := look(t.Context(), &rest.Config{Host: own, TLSClientConfig: rest.TLSClientConfig{ServerName: name}}, c.client()).hosts
		check.Same(t, want, found, "names that all need, by the kubeconfig of one node, with tls-server-name %q", name)
	}
	c.nodes[0].Status.Addresses[1].Address = "127.0.0.4"
	c.slices.Endpoints[0].Addresses[0] = "127.0.0.4" // nobody listens
	if out := c.find(t, &linter{}); !strings.HasPrefix(out, "warning: certificate of kube-apiserver 127.0.0.4:") || strings.Count(out, "\n") != 1 {
		t.Errorf("out of reach: found:\n%s", out)
	}
}

// The policy in a ConfigMap that replicas follow is checked without a flag.
func TestPreflightPolicy(t *testing.T) {
	for given, want := range map[string]string{"": "configmap:kube-system/fairlead-policy", "policy.yaml": "policy.yaml"} {
		c, l := newLand(t), &linter{Shared: cli.Shared{Policy: given}}
		c.bound()
		c.pods = append(c.pods, runs("cp1", "--policy=configmap:kube-system/fairlead-policy"))
		check.Same(t, "", c.find(t, l), "found")
		check.Same(t, want, l.Policy, "policy, with %q", given)
	}
}

// Rights to read what APIServices name for their CAs, and labels of namespaces, are asked for: an administrator may
// have them alone.
func TestPreflightUnbound(t *testing.T) {
	c, l := newLand(t), &linter{output: "text"}
	c.bound()
	c.granted = func(_ string, r *authorizationv1.ResourceAttributes) bool { return r.Verb != "list" }
	kube, e := c.client(), &registry.Entry{Backend: &registry.Backend{Namespace: "ext", CAFrom: "ca/ca.crt"}}
	l.survey = look(t.Context(), &rest.Config{Host: c.server}, kube)
	hostile := &registry.Entry{Backend: &registry.Backend{Namespace: "x;y", CAFrom: "ca/ca.crt"}}
	l.unbound(t.Context(), kube, []*registry.Entry{e, {}, {Backend: &registry.Backend{}}, hostile, e}, true)
	check.Same(t, "error: deploy/components/policy/rbac.yaml:19: ClusterRole system:fairlead-namespaces: "+accountUser+" may not list namespaces: no rule of the policy by namespaceLabels matches; "+
		"grant it again: kubectl create clusterrolebinding system:fairlead-namespaces --clusterrole=system:fairlead-namespaces --user="+accountUser+"\n"+
		"error: deploy/base/rbac.yaml:35: ClusterRole system:fairlead-ca-from: "+accountUser+" may not list configmaps ca in namespace ext: APIServices with the annotation fairlead.dev/ca-from are not verified; "+
		"grant it again: kubectl -n ext create rolebinding fairlead-ca-from --clusterrole=system:fairlead-ca-from --user="+accountUser+"\n"+
		"error: deploy/base/rbac.yaml:35: ClusterRole system:fairlead-ca-from: "+accountUser+" may not list configmaps ca in namespace x;y: APIServices with the annotation fairlead.dev/ca-from are not verified; "+
		"grant it again: kubectl apply -f deploy/base/rbac.yaml, or your kustomization with it\n", reported(l), "found")
}

// What preflight calls tested is tested, and its ports are those of the manifests.
func TestPreflightKnowsTheProject(t *testing.T) {
	makefile := string(must.Get(os.ReadFile("../../Makefile"))(t))
	oldest := regexp.MustCompile(`(?m)^OTHERS := v(\d+\.\d+)`).FindStringSubmatch(makefile)[1]
	newest := regexp.MustCompile(`(?m)^require k8s.io/kubernetes v(\d+\.\d+)`).FindStringSubmatch(string(must.Get(os.ReadFile("../../tests/tools/kubernetes/go.mod"))(t)))[1]
	check.Same(t, [2]string{oldest, newest}, [2]string{oldestRelease, newestRelease}, "releases")
	for _, file := range []string{"overlays/control-plane/daemonset.yaml", "static-pod/fairlead.yaml"} {
		text := string(must.Get(os.ReadFile("../../deploy/" + file))(t))
		check.Has(t, text, fmt.Sprintf("--secure-port=%d", securePort), fmt.Sprintf("--admin-secure-port=%d", adminPort))
	}
}

// The authentication ConfigMap says whether Fairlead can be a front proxy, by which name, and with which headers.
func TestPreflightAuthentication(t *testing.T) {
	const unchecked = "warning: proxy client certificate: it was not checked, because it was not given; give --proxy-client-cert-file and --proxy-client-key-file, as for serve\n"
	kubeadm := map[string][]byte{
		"requestheader-client-ca-file": []byte("PEM"), "requestheader-allowed-names": []byte(`["front-proxy-client"]`), "requestheader-username-headers": []byte(`["X-Remote-User"]`),
		"requestheader-group-headers": []byte(`["X-Remote-Group"]`), "requestheader-extra-headers-prefix": []byte(`["X-Remote-Extra-"]`), "requestheader-uid-headers": []byte(`["X-Remote-Uid"]`),
	}
	with := func(key, value string) map[string][]byte {
		all := maps.Clone(kubeadm)
		all[key] = []byte(value)
		return all
	}
	const object = "ConfigMap kube-system/extension-apiserver-authentication"
	for _, tt := range []struct {
		name string
		data map[string][]byte
		runs bool
		want string
	}{
		{"kubeadm's", kubeadm, false, ""},
		{"any name", with("requestheader-allowed-names", "[]"), false, ""},
		{"k3s's", with("requestheader-allowed-names", `["system:auth-proxy"]`), false, `to do: front proxies: the cluster knows them by the names ["system:auth-proxy"], and the manifests name "front-proxy-client"; ` +
			"set --requestheader-allowed-names to the name of your certificate\n"},
		{"k3s's, with a Fairlead that runs", with("requestheader-allowed-names", `["system:auth-proxy"]`), true, ""},
		{"without UIDs", with("requestheader-uid-headers", ""), false, "warning: " + object + ": the cluster does not trust X-Remote-Uid, so that part of a user's identity is lost; start kube-apiserver with --requestheader-uid-headers=X-Remote-Uid\n"},
		{"with another header for users", with("requestheader-username-headers", `["X-User"]`), false, "error: " + object + ": the cluster does not trust X-Remote-User, so that part of a user's identity is lost; start kube-apiserver with --requestheader-username-headers=X-Remote-User\n"},
		{"a managed cluster's", map[string][]byte{"client-ca-file": []byte("PEM")}, false, "to do: " + object + ": the cluster has no request-header CA, so it accepts users from no front proxy; " +
			"use deploy/overlays/managed, or start kube-apiserver with --requestheader-client-ca-file\n"},
		{"broken", with("requestheader-username-headers", "x"), false, "error: " + object + ": the authentication ConfigMap is broken: " +
			"parsing requestheader-username-headers: invalid character 'x' looking for beginning of value; correct kube-system/extension-apiserver-authentication\n"},
		{"unreadable", nil, false, ""},
	} {
		l := &linter{output: "text", survey: &survey{replicas: []corev1.Pod{}}} // not nil: an empty list in JSON
		if tt.runs {
			l.survey.replicas = []corev1.Pod{{}}
		}
		l.ports(l.survey)
		l.proxyClient(tt.data)
		check.Same(t, tt.want+unchecked, reported(l), "%s", tt.name)
	}
}
