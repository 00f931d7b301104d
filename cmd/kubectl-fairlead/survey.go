package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
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
	s, ask := &survey{}, &authenticationv1.SelfSubjectReview{}
	see := func(err error, what string) bool {
		if err != nil && !apierrors.IsNotFound(err) {
			s.unseen = append(s.unseen, fmt.Errorf("reading %s: %w", what, err))
		}
		return err == nil
	}
	self, err := kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, ask, metav1.CreateOptions{})
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
	nodes, err := core.Nodes().List(ctx, metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"})
	if see(err, "the control plane's nodes") {
		s.nodes = nodes.Items
	}
	for i := range s.nodes {
		name := s.nodes[i].Name
		pods, err := core.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
		if see(err, "the pods of "+name) {
			s.pods = append(s.pods, pods.Items...)
		}
	}
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=fairlead"}
	if pods, err := core.Pods(metav1.NamespaceSystem).List(ctx, ours); see(err, "Fairlead's pods") {
		s.replicas = pods.Items
	}
	slicesOf := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"}
	list, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, slicesOf)
	if see(err, "the EndpointSlices of the Service kubernetes") {
		s.published = addresses(list, "https")
	}
	if u, _, err := rest.DefaultServerUrlFor(cfg); err == nil && !cfg.Insecure && u.Scheme+u.Path == "https" &&
		(cfg.ServerName != "" || !slices.Contains(s.published, u.Host)) { // others' certificates lack that address
		s.hosts = append(s.hosts, cmp.Or(cfg.ServerName, u.Hostname())) // kubectl proxy has no TLS, Rancher a path
	}
	info, err := core.ConfigMaps(metav1.NamespacePublic).Get(ctx, "cluster-info", metav1.GetOptions{})
	if see(err, "the kubeconfig for nodes that join") {
		if joins, err := clientcmd.Load([]byte(info.Data["kubeconfig"])); err == nil {
			for _, c := range joins.Clusters {
				if u, err := url.Parse(c.Server); err == nil {
					s.hosts = append(s.hosts, u.Hostname())
				}
			}
		}
	}
	return s
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
				flags[name] = strings.TrimPrefix(value, "false") // as if it were not given: none is true by default
			}
		}
	}
	return flags
}

func (s *survey) flags() map[string]string {
	if len(s.replicas) == 0 {
		return nil
	}
	return flagsOf(&s.replicas[0])
}

// taken returns the pods other than Fairlead's that use a port of a control-plane node. Load balancers there (HAProxy
// of kubeadm's guide, kube-vip) declare none: in pods on the host network probes, arguments and variables count, too.
func (s *survey) taken(port int32) (by []string) {
	declared := regexp.MustCompile(fmt.Sprintf(`"hostPort":%d\b`, port))
	said := regexp.MustCompile(fmt.Sprintf(
		`"(\w*[pP]ort|value)":"?:?%[1]d\b|"-[^"]*(port|addr|listen|bind)[^"]*[=:]%[1]d"`, port))
	for i := range s.pods {
		p := &s.pods[i]
		spec, _ := json.Marshal(p.Spec) // it came as JSON
		uses := declared.Match(spec) || p.Spec.HostNetwork && said.Match(spec)
		if uses && p.Labels["app.kubernetes.io/name"] != "fairlead" {
			by = append(by, fmt.Sprintf("%s/%s on %s", p.Namespace, p.Name, p.Spec.NodeName))
		}
	}
	return by
}
