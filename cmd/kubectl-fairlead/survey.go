package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Users of Fairlead: the ServiceAccount of deploy/base, and the user of deploy/static-pod.
const accountUser, podUser = "system:serviceaccount:kube-system:fairlead", "system:fairlead"

// survey is what an administrator sees of a cluster: what decides how Fairlead can run there.
type survey struct {
	user      string        // of the kubeconfig
	release   string        // of kube-apiserver
	nodes     []corev1.Node // of the control plane
	pods      []corev1.Pod  // on these nodes
	replicas  []corev1.Pod  // of Fairlead
	installed bool          // Fairlead's ServiceAccount exists, or it could not be read whether it does
	published []string      // address:port of each endpoint of the Service default/kubernetes
	hosts     []string      // of kubeconfigs: what clients dial
	unseen    []error       // what could not be read
}

// look makes a survey. What does not exist is no error.
func look(ctx context.Context, cfg *rest.Config, kube kubernetes.Interface) *survey {
	s := &survey{}
	see := func(err error, what string) bool {
		if err != nil && !apierrors.IsNotFound(err) {
			s.unseen = append(s.unseen, fmt.Errorf("reading %s: %w", what, err))
		}
		return err == nil
	}
	self, err := kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if see(err, "the kubeconfig's user") {
		s.user = self.Status.UserInfo.Username
	}
	if release, err := kube.Discovery().ServerVersion(); see(err, "the release") {
		s.release = release.GitVersion
	}
	if s.user == accountUser || s.user == podUser {
		s.installed = true
		return s // it may read none of the rest
	}
	core := kube.CoreV1()
	_, err = core.ServiceAccounts(metav1.NamespaceSystem).Get(ctx, "fairlead", metav1.GetOptions{})
	s.installed = see(err, "Fairlead's ServiceAccount") || !apierrors.IsNotFound(err)
	if nodes, err := core.Nodes().List(ctx, metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"}); see(err, "the control plane's nodes") {
		s.nodes = nodes.Items
	}
	for i := range s.nodes {
		if pods, err := core.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.nodes[i].Name}); see(err, "the pods of "+s.nodes[i].Name) {
			s.pods = append(s.pods, pods.Items...)
		}
	}
	if pods, err := core.Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=fairlead"}); see(err, "Fairlead's pods") {
		s.replicas = pods.Items
	}
	slicesOf := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"}
	if list, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, slicesOf); see(err, "the EndpointSlices of the Service kubernetes") {
		s.published = endpointsOf(list.Items)
	}
	if !cfg.Insecure {
		s.hosts = append(s.hosts, cmp.Or(cfg.ServerName, hostOf(cfg.Host)))
	}
	info, err := core.ConfigMaps(metav1.NamespacePublic).Get(ctx, "cluster-info", metav1.GetOptions{})
	if see(err, "the kubeconfig for nodes that join") {
		if joins, err := clientcmd.Load([]byte(info.Data["kubeconfig"])); err == nil {
			for _, c := range joins.Clusters {
				s.hosts = append(s.hosts, hostOf(c.Server))
			}
		}
	}
	slices.Sort(s.hosts)
	s.hosts = slices.Compact(s.hosts)
	return s
}

func hostOf(server string) string {
	u, err := url.Parse(server)
	if err != nil || u.Hostname() == "" {
		host, _, _ := net.SplitHostPort(server)
		return host
	}
	return u.Hostname()
}

// endpointsOf returns address:port of each endpoint.
func endpointsOf(list []discoveryv1.EndpointSlice) (all []string) {
	for _, s := range list {
		for _, e := range s.Endpoints {
			for _, p := range s.Ports {
				if p.Port != nil && len(e.Addresses) > 0 {
					all = append(all, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// internal returns a node's addresses, the kubelet's own first: $(HOST_IP) of the manifests.
func internal(n *corev1.Node) (all []string) {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			all = append(all, a.Address)
		}
	}
	return all
}

// flagsOf returns the flags of a pod's containers. Of one that is given twice, the last one counts.
func flagsOf(p *corev1.Pod) map[string]string {
	flags := map[string]string{}
	for _, c := range p.Spec.Containers {
		for _, word := range slices.Concat(c.Command, c.Args) {
			if name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "="); strings.HasPrefix(word, "-") {
				if !given {
					value = "true"
				}
				flags[name] = value
			}
		}
	}
	return flags
}

// flags returns those of any replica of Fairlead.
func (s *survey) flags() map[string]string {
	if len(s.replicas) == 0 {
		return nil
	}
	return flagsOf(&s.replicas[0])
}

// servers returns the flags of the kube-apiservers that run as pods, by node.
func (s *survey) servers() map[string]map[string]string {
	all := map[string]map[string]string{}
	for i := range s.pods {
		if p := &s.pods[i]; p.Namespace == metav1.NamespaceSystem && p.Labels["component"] == "kube-apiserver" {
			all[p.Spec.NodeName] = flagsOf(p)
		}
	}
	return all
}

// inWords matches a port in an argument or a variable: --lb-port=8443, --listen=:8443, 8443.
var inWords = regexp.MustCompile(`^(?:-.*(?:port|addr|listen|bind).*[=:]|:)?(\d{4,5})$`)

// portsOf returns the ports of its node that a pod uses. Load balancers on control planes (HAProxy
// of kubeadm's guide, kube-vip) declare none: their probes, arguments and variables count, too.
func portsOf(p *corev1.Pod) map[int32]bool {
	used := map[int32]bool{}
	add := func(text string) {
		if m := inWords.FindStringSubmatch(text); m != nil && p.Spec.HostNetwork {
			n, _ := strconv.ParseInt(m[1], 10, 32) // five digits
			used[int32(n)] = true
		}
	}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			used[port.HostPort] = true
			if p.Spec.HostNetwork {
				used[port.ContainerPort] = true
			}
		}
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if probe != nil && probe.HTTPGet != nil {
				add(probe.HTTPGet.Port.String())
			}
			if probe != nil && probe.TCPSocket != nil {
				add(probe.TCPSocket.Port.String())
			}
		}
		for _, word := range slices.Concat(c.Command, c.Args) {
			add(word)
		}
		for _, v := range c.Env {
			add(v.Value)
		}
	}
	return used
}

// taken returns the pods other than Fairlead's that use a port of a control-plane node.
func (s *survey) taken(port int32) (by []string) {
	for i := range s.pods {
		if p := &s.pods[i]; p.Labels["app.kubernetes.io/name"] != "fairlead" && portsOf(p)[port] {
			by = append(by, fmt.Sprintf("%s/%s on %s", p.Namespace, p.Name, p.Spec.NodeName))
		}
	}
	return by
}

// strangers returns the published addresses that are no control-plane node's, and the nodes that
// none is of.
func (s *survey) strangers() (addresses, nodes []string) {
	at := map[string]string{} // :: address → node
	missing := map[string]bool{}
	for i := range s.nodes {
		missing[s.nodes[i].Name] = true
		for _, a := range internal(&s.nodes[i]) {
			at[a] = s.nodes[i].Name
		}
	}
	for _, p := range s.published {
		host, _, _ := net.SplitHostPort(p)
		if at[host] == "" {
			addresses = append(addresses, host)
		}
		delete(missing, at[host])
	}
	return addresses, slices.Sorted(maps.Keys(missing))
}
