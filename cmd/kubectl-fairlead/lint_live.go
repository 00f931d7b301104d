package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/shadow"
)

const (
	clusterTimeout = 30 * time.Second // of a request, and of reading the table: seconds even for 10,000 APIServices
	// sameFlags is the advice for addresses that Fairlead does not dial.
	sameFlags = "give lint the same flags as serve (--allow-loopback-backends, --enable-aggregator-routing, " +
		"--behind); if they are the same, correct the Service"
	grant = "give the kubeconfig's user the ClusterRole of Fairlead"
	login = "renew the kubeconfig's credential: the server does not accept it"
	// ownAddress is the advice for a server that does not answer like a kube-apiserver.
	ownAddress = "check that the kubeconfig names kube-apiserver's own address, and that it and its etcd run"
)

// config reads --kubeconfig, or what kubectl would: $KUBECONFIG, ~/.kube/config, a pod's account.
func (l *linter) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = l.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: l.context}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
}

func (l *linter) inspect(ctx context.Context, cfg *rest.Config) {
	cfg.UserAgent = "fairlead-lint/" + version
	l.credentials(cfg)
	cfg.QPS = -1 // no limit: requests are sequential
	cfg.Timeout = clusterTimeout
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		l.Error("kubeconfig", "correct it", "making a client: %v", err)
		return
	}
	front := stateOf(ctx, cfg)
	defer l.told(front)
	if front.Ready != "" {
		return
	}
	client := kube.CoreV1()
	authentication, reached := l.authentication(ctx, client)
	if !reached {
		return
	}
	l.survey = look(ctx, cfg, kube)
	l.preflight(ctx, l.survey, kube)
	l.proxyClient(authentication)
	if !l.readable(ctx, client.RESTClient()) {
		return
	}
	t, err := l.table(ctx, cfg)
	if err != nil {
		l.Error("local apiserver", doFor(err, grant), "reading its APIServices, Services and EndpointSlices: %v", err)
		return
	}
	l.faults(t.Problems(), "correct the policy")
	l.lockout(t.Rules())
	entries := t.Servers()
	l.usable = usable(ctx, client.RESTClient())
	answers := l.ask(ctx, entries)
	for _, e := range entries {
		l.problems(e, "")
		if !e.Local() {
			l.backend(ctx, client, e, answers[e])
		}
	}
	l.unbound(ctx, kube, entries, t.NamespaceLabels())
	l.doubled(entries)
	l.shadowed(ctx, client.RESTClient(), t.Claimed())
}

// told adds what a Fairlead knows by its requests, such as what URLs serve.
func (l *linter) told(s *answer.Status) {
	for _, k := range s.Failing() {
		l.Error("Fairlead's check "+k.Name, cmp.Or(k.Advice, "kubectl fairlead status"), "%s", k.Message)
	}
	if len(s.Handshakes) > 0 {
		l.Warn("clients of "+s.Replica, "kubectl fairlead status", "%s", s.Handshakes[0])
	}
	if s.Ready != "" {
		l.Error("Fairlead", "give lint a kubeconfig of kube-apiserver's own address: nothing else was checked",
			"it takes no requests: %s", s.Ready)
		return
	}
	for _, a := range s.Remotes() {
		object, down := "APIService "+a.Name, !a.Available() && a.Maintenance == ""
		said := func(f certs.Finding) bool { return f.Object == object }
		if a.Cause != "" && (!down || !slices.ContainsFunc(l.Findings, said)) {
			l.Add(map[bool]string{true: certs.SeverityError, false: certs.SeverityWarning}[down], object,
				cmp.Or(a.Advice, "kubectl fairlead explain "+a.Name), "%s", a.Cause)
		}
	}
}

// readable reports what of the cluster cannot be read. Table would ask for it until its time is over.
func (l *linter) readable(ctx context.Context, client rest.Interface) bool {
	before := len(l.Findings)
	for _, path := range []string{
		"/apis/apiregistration.k8s.io/v1/apiservices", "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices",
	} {
		if err := client.Get().AbsPath(path).Param("limit", "1").Do(ctx).Error(); err != nil {
			l.Error("local apiserver", doFor(err, grant), "reading %s: %v", path, err)
		}
	}
	return len(l.Findings) == before
}

func doFor(err error, allow string) string {
	switch text := err.Error(); {
	case apierrors.IsForbidden(err):
		return allow
	case apierrors.IsUnauthorized(err):
		return login
	case strings.Contains(text, "getting credentials: "):
		return "run the kubeconfig's plugin (exec) by hand: it gives no credential"
	case strings.Contains(text, "x509: "):
		return cmp.Or(advice.For(text), ownAddress)
	}
	return ownAddress
}

func (l *linter) table(ctx context.Context, cfg *rest.Config) (*registry.Table, error) {
	c := registry.Config{Client: cfg, Policy: l.Policy, Options: l.TableOptions()}
	r, err := registry.New(c) //nolint:contextcheck // it validates
	if err != nil {
		return nil, err
	}
	ctx, late := context.WithTimeout(ctx, clusterTimeout)
	defer late()
	ctx, cancel := context.WithCancelCause(ctx)
	var owner sync.WaitGroup
	defer owner.Wait()
	defer cancel(nil)
	owner.Go(func() { cancel(r.Run(ctx)) })
	for t := range latest.Of(ctx, r.Table, nil) {
		if t.Complete() {
			return t, nil
		}
	}
	return nil, context.Cause(ctx)
}

func (l *linter) backend(ctx context.Context, client corev1client.CoreV1Interface, e *registry.Entry, answers []shown) {
	object, b := "APIService "+e.Name, e.Backend
	switch e.Verdict.Reason {
	case "", registry.ReasonInvalidCABundle, registry.ReasonMaintenance, registry.ReasonProtectedGroup,
		registry.ReasonInvalidURL: // reported by other checks, or intended
	case registry.ReasonServicePortError:
		l.Error(object, advice.Of(e, e.Verdict.Message), "%s", e.Verdict.Message)
	default:
		l.Add(l.severity(e), object, cmp.Or(advice.Of(e, e.Verdict.Message), "check that its backend runs"),
			"%s: %s", e.Verdict.Reason, e.Verdict.Message)
	}
	bundle, ok := l.bundleOf(object, b, func(namespace, name string) (*corev1.ConfigMap, error) {
		list, err := client.ConfigMaps(namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil || len(list.Items) == 0 { // Fairlead's account may list, as serve does, and not get
			return nil, cmp.Or[error](err, apierrors.NewNotFound(corev1.Resource("configmaps"), name))
		}
		return &list.Items[0], nil
	})
	if ok {
		l.CheckBackend(object, b, bundle, l.presented(e, answers))
	}
}

// shadowed reports CustomResourceDefinitions of remotes' group-versions: their objects exist, but cannot be reached.
func (l *linter) shadowed(ctx context.Context, client rest.Interface, claimed []schema.GroupVersion) {
	found, err := shadow.Find(ctx, client, claimed)
	if err != nil {
		l.Warn("CustomResourceDefinitions", "allow listing customresourcedefinitions.apiextensions.k8s.io",
			"whether one is shadowed was not checked: %v", err)
		return
	}
	for _, gv := range claimed {
		if name := found[gv]; name != "" {
			l.Error("APIService "+gv.Version+"."+gv.Group,
				"rename the group of one of them, or delete the unused one: the APIService is served",
				"it shadows CustomResourceDefinition %s: its objects cannot be reached in version %s", name, gv.Version)
		}
	}
}
