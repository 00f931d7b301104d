package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/cmd/rights"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	oldestRelease, newestRelease = "1.30", "1.37" // of Kubernetes that `make skew` tests
	securePort, adminPort        = 8443, 8444     // of the manifests for control-plane nodes
)

// preflight checks what decides whether Fairlead can run in a cluster. What is to be done first is no fault.
func (l *linter) preflight(ctx context.Context, s *survey, kube kubernetes.Interface) {
	if s.flags()["local-identity"] == cli.Impersonate {
		l.LocalIdentity = cli.Impersonate
	}
	l.Behind = cmp.Or(l.Behind, s.flags()["behind"])
	if _, inMap := cli.PolicyMap(s.flags()["policy"]); inMap { // a file is on another machine
		l.Policy = cmp.Or(l.Policy, s.flags()["policy"])
	}
	if len(s.unseen) > 0 {
		l.Warn("preflight", "use an administrator's kubeconfig", "a part was not checked: %v", errors.Join(s.unseen...))
	}
	v, err := utilversion.ParseGeneric(s.release)
	if err == nil && (v.LessThan(utilversion.MustParseGeneric(oldestRelease)) ||
		utilversion.MustParseGeneric(newestRelease).LessThan(v.WithPatch(0))) {
		l.Warn("kube-apiserver", "try Fairlead with this release on a cluster that nobody needs",
			"its release %s is not among those that Fairlead is tested with, %s to %s",
			s.release, oldestRelease, newestRelease)
	}
	l.rights(ctx, s, kube, l.needed(s))
	l.ports(s)
	l.servers(s)
	l.published(s)
	l.clientNames(ctx, s)
}

// pending is the severity of what Fairlead would meet: while it does not run, it is a step of the installation.
func (s *survey) pending() string {
	if len(s.replicas) > 0 {
		return certs.SeverityWarning
	}
	return certs.SeverityToDo
}

func (l *linter) needed(s *survey) []rights.Right {
	flags, f := s.flags(), rights.Shipped()
	f.Impersonation = l.impersonates() && (l.Behind == "" || flags["client-ca-file"] != "")
	f.Status, f.Events = flags["write-status"] != "", flags["emit-events"] != ""
	f.Entrypoint, f.Critical = flags["publish-kubernetes-endpoints"] != "", flags["critical-apiservices"] != ""
	f.Servers = flags["local-apiservers-from"]
	f.Policy, _ = cli.PolicyMap(flags["policy"])
	return rights.Needed(f)
}

func (l *linter) rights(ctx context.Context, s *survey, kube kubernetes.Interface, all []rights.Right) {
	account := cmp.Or(l.account, accountUser)
	if l.account == "" && (s.user == podUser || s.flags()["kubeconfig"] != "") {
		account = podUser
	}
	groups := []string{"system:authenticated"}
	if namespace, _, err := serviceaccount.SplitUsername(account); err == nil {
		groups = append(groups, serviceaccount.MakeGroupNames(namespace)...)
	}
	var missing []rights.Right
	for _, r := range all {
		own, other := &authorizationv1.SelfSubjectAccessReview{}, &authorizationv1.SubjectAccessReview{}
		own.Spec.ResourceAttributes, other.Spec.ResourceAttributes = r.Attributes(), r.Attributes()
		other.Spec.User, other.Spec.Groups = account, groups
		var err error
		if s.user == account {
			own, err = kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, own, metav1.CreateOptions{})
		} else {
			other, err = kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, other, metav1.CreateOptions{})
		}
		why := own.Status.EvaluationError + other.Status.EvaluationError // one of them was asked
		switch denied := !own.Status.Allowed && !other.Status.Allowed; {
		case err != nil:
			l.Warn("user "+account, doFor(err, "use an administrator's kubeconfig, or Fairlead's own"),
				"its rights were not checked: %v", err)
			return
		case denied && why != "": // kube-apiserver answers 500 then, not 403 (filters.WithAuthorization)
			l.Warn("user "+account, "see kube-apiserver's log: an authorizer, such as its webhook, fails",
				"its rights were not checked: kube-apiserver could not decide: %s", why)
			return
		case denied:
			missing = append(missing, r)
		}
	}
	if len(missing) > 0 && !s.installed {
		l.Add(certs.SeverityToDo, "user "+account,
			"kubectl apply -k deploy/base, which each layout of kubectl fairlead init includes",
			"%d of its %d rights are not granted yet", len(missing), len(all))
		return
	}
	for _, r := range missing {
		what, _, _ := strings.Cut(r.Manifest, ":") // the file: its folder may have a workload, without your own flags
		do := "kubectl apply -f %s, or your kustomization with it"
		switch { // authors of APIServices must not control by names what others run
		case strings.HasSuffix(r.Role, "-ca-from") && len(validation.IsDNS1123Label(r.Namespace)) == 0:
			what, do = r.Namespace, "kubectl -n %s create rolebinding fairlead-ca-from "+
				"--clusterrole=system:fairlead-ca-from --user="+account
		case r.Resource == "namespaces": // no manifest binds these two
			what, do = account, "kubectl create clusterrolebinding system:fairlead-namespaces "+
				"--clusterrole=system:fairlead-namespaces --user=%s"
		case account == podUser && path.Dir(what) != "deploy/base": // by itself it binds the ServiceAccount alone
			what, do = path.Dir(what), "apply your kustomization with %s and deploy/components/static-pod"
		case account == podUser:
			what, do = "deploy/static-pod", "kubectl apply -k %s, or your kustomization with it"
		}
		severity, names := certs.SeverityError, ""
		if r.Narrow {
			severity, names = certs.SeverityWarning, " of every name, which is right if only some are granted"
		}
		l.Add(severity, r.Manifest+": "+r.Role, "grant it again: "+fmt.Sprintf(do, what),
			"%s may not %s%s: %s", account, r, names, r.For)
	}
}

// unbound asks for rights that no manifest binds, if objects need them: who runs lint may have them, and Fairlead not.
func (l *linter) unbound(ctx context.Context, kube kubernetes.Interface, entries []*registry.Entry, labels bool) {
	all := rights.Needed(rights.Features{Bundles: rights.BundlesOf(entries), NamespaceLabels: labels})
	bound := func(r rights.Right) bool { return !strings.HasSuffix(r.Role, "-ca-from") && r.Resource != "namespaces" }
	if l.survey.installed {
		l.rights(ctx, l.survey, kube, slices.DeleteFunc(all, bound))
	}
}

func (l *linter) ports(s *survey) {
	if len(s.replicas) > 0 && !s.replicas[0].Spec.HostNetwork {
		return // it has an address of its own
	}
	for i, flag := range []string{"secure-port", "admin-secure-port"} {
		port := []int32{securePort, adminPort}[i]
		if given, err := strconv.ParseInt(s.flags()[flag], 10, 32); err == nil {
			port = int32(given)
		}
		for _, by := range s.taken(port) {
			l.Add(s.pending(), fmt.Sprintf("port %d", port),
				"choose another one: kubectl fairlead init --layout=… --"+flag+"=…",
				"pod %s uses it, so no Fairlead can on that node", by)
		}
	}
}

func (l *linter) servers(s *survey) {
	all := map[string]map[string]string{} // :: node → flag → value
	for i := range s.pods {
		if p := &s.pods[i]; p.Namespace == metav1.NamespaceSystem && p.Labels["component"] == "kube-apiserver" {
			all[p.Spec.NodeName] = flagsOf(p)
		}
	}
	nodes := slices.Sorted(maps.Keys(all))
	for _, flag := range []string{
		"requestheader-allowed-names", "requestheader-username-headers", "requestheader-group-headers",
		"requestheader-extra-headers-prefix", "requestheader-uid-headers",
		"enable-aggregator-routing", "endpoint-reconciler-type", "egress-selector-config-file", "authorization-mode",
	} {
		for _, node := range nodes[min(1, len(nodes)):] {
			if one, other := all[nodes[0]][flag], all[node][flag]; one != other {
				l.Warn("kube-apiserver", "give all kube-apiservers the same flags",
					"--%s is %q on %s, and %q on %s", flag, one, nodes[0], other, node)
			}
		}
	}
	if len(nodes) == 0 {
		return // it does not run as a pod, or nobody can see it
	}
	flags, own := all[nodes[0]], s.flags()
	if flags["egress-selector-config-file"] != "" && own["egress-selector-config-file"] == "" {
		l.Add(s.pending(), "kube-apiserver", "give Fairlead --egress-selector-config-file too, or a route to pods",
			"it reaches pods by an egress proxy, so its nodes may have no route to them")
	}
	if flags["endpoint-reconciler-type"] == "none" && own["publish-kubernetes-endpoints"] == "" {
		l.Warn("Service default/kubernetes", "remove --endpoint-reconciler-type=none from kube-apiserver, "+
			"or let Fairlead publish itself (deploy/components/entrypoint)",
			"neither kube-apiserver nor Fairlead keeps its endpoints")
	}
	l.byClusterIP = flags["enable-aggregator-routing"] != "true"
}

// published compares the endpoints of the Service kubernetes with the nodes: by them Fairlead finds kube-apiservers.
func (l *linter) published(s *survey) {
	if len(s.nodes) == 0 || s.flags()["publish-kubernetes-endpoints"] != "" || s.published == nil && s.unseen != nil {
		return // managed by somebody else, Fairlead's own, or perhaps not seen
	}
	const object = "Service default/kubernetes"
	const do = "name the kube-apiservers by --local-apiserver instead of --local-apiservers-from=endpointslice, " +
		"or correct their --advertise-address"
	missing, families, before := slices.Clone(s.published), map[bool]string{}, len(l.Findings)
	for i := range s.nodes {
		own := internal(&s.nodes[i])
		if len(own) > 0 {
			families[strings.Contains(own[0], ":")] = s.nodes[i].Name
		}
		all := len(missing)
		missing = slices.DeleteFunc(missing, func(p string) bool {
			host, _, _ := net.SplitHostPort(p)
			return slices.Contains(own, host)
		})
		if len(missing) == all {
			l.Add(s.pending(), object, do, "it has no endpoint of node %s", s.nodes[i].Name)
		}
	}
	for _, p := range missing {
		l.Add(s.pending(), object, do, "its endpoint %s is no control-plane node's: "+
			"it may be a load balancer, which will lead to Fairlead itself", p)
	}
	l.listed = len(l.Findings) == before
	if len(families) > 1 {
		l.Add(s.pending(), "nodes", "give all control-plane nodes the same family first (kubelet's --node-ip)",
			"the first address of %s is IPv4, and that of %s IPv6: no client reaches all replicas by one family",
			families[false], families[true])
	}
}

// clientNames asks the kube-apiservers for their certificates, which Fairlead will present on their nodes.
func (l *linter) clientNames(ctx context.Context, s *survey) {
	if len(s.nodes) == 0 {
		return // nobody can log in there
	}
	for _, address := range s.published {
		host, _, _ := net.SplitHostPort(address)
		object := "certificate of kube-apiserver " + address
		got := chainOf(ctx, (&net.Dialer{}).DialContext, address, "")
		if got.err != nil {
			l.Warn(object, "run lint on a node, or compare its subject alternative names by hand",
				"asking for it: %v", got.err)
			continue
		}
		want := slices.Sorted(slices.Values(slices.Concat([]string{host}, s.hosts, l.names)))
		l.CheckServing(object, got.chain, slices.Compact(want))
	}
}
