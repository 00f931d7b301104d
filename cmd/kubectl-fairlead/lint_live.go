package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/registry/shadow"
)

const (
	// clusterTimeout bounds reading the cluster: three lists and three watches, seconds at most
	// even for 10,000 APIServices.
	clusterTimeout = 30 * time.Second
	// handshakeTimeout bounds one endpoint, as a probe's does, and maxHandshakes how many are asked
	// at the same time.
	handshakeTimeout = 5 * time.Second
	maxHandshakes    = 16
)

// live checks the wiring of a cluster end to end.
func (l *linter) live(ctx context.Context) {
	cfg, err := clientcmd.BuildConfigFromFlags("", l.kubeconfig)
	if err != nil {
		l.error("kubeconfig", "correct it", "--kubeconfig: %v", err)
		return
	}
	cfg.UserAgent = "fairlead-lint/" + version
	cfg.QPS = -1 // no limit: a bundle or a definition at a time
	client, err := corev1client.NewForConfig(cfg)
	if err != nil {
		l.error("kubeconfig", "correct it", "making a client: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	if !l.proxyClient(ctx, client) {
		return
	}
	entries, err := l.table(ctx, cfg)
	if err != nil {
		l.error("local apiserver", "give the kubeconfig's user the ClusterRole of Fairlead", "reading its APIServices, Services and EndpointSlices: %v", err)
		return
	}
	for _, e := range entries {
		l.problems(e, "")
		if !e.Local() {
			l.backend(ctx, client, e)
		}
	}
	l.shadowed(ctx, client.RESTClient(), entries)
}

// proxyClient compares the proxy client certificate with the cluster's authentication ConfigMap.
// False: there is no cluster to talk to.
func (l *linter) proxyClient(ctx context.Context, client corev1client.CoreV1Interface) bool {
	const name = "extension-apiserver-authentication"
	cm, err := client.ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if network := net.Error(nil); errors.As(err, &network) {
		l.error("local apiserver", "see that it runs, and that the kubeconfig names its own address", "it cannot be reached: %v", err)
		return false
	}
	var authentication map[string][]byte
	if err != nil {
		l.warn("ConfigMap "+metav1.NamespaceSystem+"/"+name, "bind the Role extension-apiserver-authentication-reader", "reading: %v", err)
	} else {
		authentication = make(map[string][]byte, len(cm.Data))
		for k, v := range cm.Data {
			authentication[k] = []byte(v)
		}
	}
	if l.proxyCert == "" {
		l.warn("proxy client certificate", "give --proxy-client-cert-file and --proxy-client-key-file, as for serve", "it was not checked, because it was not named")
		return true
	}
	if chain := l.pair("proxy client certificate", l.proxyCert, l.proxyKey); chain != nil {
		l.found = append(l.found, certs.CheckProxyClient(chain, authentication)...)
	}
	return true
}

// table reads the cluster exactly as serve does.
func (l *linter) table(ctx context.Context, cfg *rest.Config) ([]*registry.Entry, error) {
	r, err := registry.New(registry.Config{Client: cfg, Options: *l.tableOptions(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var owner sync.WaitGroup
	defer owner.Wait()
	defer cancel(nil)
	owner.Go(func() { cancel(r.Run(ctx)) })
	for t := range latest.Of(ctx, r.Table, nil) {
		if t.Complete() {
			return t.Entries(), nil
		}
	}
	return nil, context.Cause(ctx)
}

// backend checks one APIService's bundle against what its endpoints present now.
func (l *linter) backend(ctx context.Context, client corev1client.CoreV1Interface, e *registry.Entry) {
	object, b := "APIService "+e.Name, e.Backend
	switch e.Verdict.Reason {
	case "", registry.ReasonInvalidCABundle, registry.ReasonMaintenance, registry.ReasonProtectedGroup, registry.ReasonInvalidURL: // said by others, or on purpose
	case registry.ReasonServicePortError:
		l.error(object, "give the Service that port, or name one of its ports in spec.service.port", "%s", e.Verdict.Message)
	default:
		l.error(object, "start its backend, or delete the APIService", "%s: %s", e.Verdict.Reason, e.Verdict.Message)
	}
	bundle := []byte(b.CABundle)
	if b.CAFrom != "" {
		name, key, _ := strings.Cut(b.CAFrom, "/")
		cm, err := client.ConfigMaps(b.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			l.error(object, "make that ConfigMap, or correct the annotation fairlead.dev/ca-from", "reading its bundle: %v", err)
			return
		}
		var ok bool
		if bundle, ok = l.referenced(object, cm, key); !ok {
			return
		}
	}
	l.found = append(l.found, certs.CheckBackend(e.Name, b, bundle, l.presented(ctx, e))...)
}

// presented asks every endpoint for its chain, and shows the proxy client certificate to none. An
// endpoint that cannot be reached from here is left out with a warning: Fairlead may run in another
// network.
func (l *linter) presented(ctx context.Context, e *registry.Entry) map[string][]*x509.Certificate {
	var mu sync.Mutex // guards what follows
	chains := make(map[string][]*x509.Certificate)
	faults := make(map[string]error)
	rules := l.reach()
	var g errgroup.Group
	g.SetLimit(maxHandshakes)
	for _, endpoint := range e.Endpoints {
		g.Go(func() error {
			chain, err := chainOf(ctx, rules.Dial, endpoint.Address, e.Backend.NameAt(endpoint.Address))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				faults[endpoint.Address] = err
			} else {
				chains[endpoint.Address] = chain
			}
			return nil
		})
	}
	_ = g.Wait() // none of them fails
	for _, endpoint := range e.Endpoints {
		if err := faults[endpoint.Address]; err != nil {
			l.warn("APIService "+e.Name, "run lint where Fairlead runs, or look at the backend", "endpoint %s: asking for its certificate: %v", endpoint.Address, err)
		}
	}
	return chains
}

func chainOf(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), address, name string) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{
		ServerName: name, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // nothing is sent; certs.CheckBackend verifies what is presented, and says why it is refused
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return conn.ConnectionState().PeerCertificates, nil
}

// shadowed finds CustomResourceDefinitions whose group-version an APIService sends elsewhere: their
// objects are still there, and nobody can reach them.
func (l *linter) shadowed(ctx context.Context, client rest.Interface, entries []*registry.Entry) {
	var claimed []schema.GroupVersion
	for _, e := range entries {
		if !e.Local() {
			claimed = append(claimed, e.GroupVersion)
		}
	}
	found, err := shadow.Find(ctx, client, claimed)
	if err != nil {
		l.warn("CustomResourceDefinitions", "allow listing customresourcedefinitions.apiextensions.k8s.io", "whether one is shadowed was not checked: %v", err)
		return
	}
	for _, gv := range claimed {
		if name := found[gv]; name != "" {
			l.error("APIService "+gv.Version+"."+gv.Group, "delete the APIService or the CustomResourceDefinition, whichever is left over",
				"it shadows CustomResourceDefinition %s: its objects cannot be reached in version %s", name, gv.Version)
		}
	}
}
