package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// Backend is an extension server, with the group-versions that it serves.
type Backend struct {
	Namespace string // of its Service; created if missing
	Service   string // the Service's name; the certificate must be valid for <Service>.<Namespace>.svc
	Port      int    // its port
	CAFile    string // the CA of its serving certificate
	// Addresses are its endpoints, not on loopback. The Service is headless: kube-apiserver's own aggregator cannot
	// dial it, so all that the backend receives comes from Fairlead. All of one family. Nil: localhost.
	Addresses     []string
	GroupVersions []string          // have the form metrics.k8s.io/v1beta1, the preferred version first
	Annotations   map[string]string // those of its APIServices. Nil: none.
}

// Register creates b's Service and APIServices. Kubernetes refuses loopback addresses in
// EndpointSlices, so the Service of a backend there is the external name localhost, with the
// backend's own port. kube-apiserver's aggregator follows that, and so does Fairlead with
// --allow-loopback-backends.
func (c *Cluster) Register(ctx context.Context, b Backend) (err error) {
	defer try.Catch(&err)
	ca, rc := try.Get(os.ReadFile(b.CAFile)), c.Endpoint().RESTConfig(c.Admin())
	core, services := try.Get(kubernetes.NewForConfig(rc)), try.Get(aggregator.NewForConfig(rc))
	_, err = core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.Namespace}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		try.Do(err)
	}
	meta := metav1.ObjectMeta{Name: b.Service, Labels: map[string]string{discoveryv1.LabelServiceName: b.Service}}
	spec := corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}
	if b.Addresses != nil {
		spec = corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(b.Port))}},
		}
		for _, a := range b.Addresses {
			if strings.Contains(a, ":") {
				slice.AddressType = discoveryv1.AddressTypeIPv6
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
		}
		try.Get(core.DiscoveryV1().EndpointSlices(b.Namespace).Create(ctx, slice, metav1.CreateOptions{}))
	}
	spec.Ports = []corev1.ServicePort{{Port: int32(b.Port)}}
	try.Get(core.CoreV1().Services(b.Namespace).Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: spec}, metav1.CreateOptions{}))
	for i, gv := range b.GroupVersions {
		group, version, _ := strings.Cut(gv, "/")
		try.Get(services.ApiregistrationV1().APIServices().Create(ctx, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: version + "." + group, Annotations: b.Annotations},
			Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: b.Namespace, Name: b.Service, Port: new(int32(b.Port))},
				Group:   group, Version: version, CABundle: ca,
				GroupPriorityMinimum: 1000, // below every built-in group
				VersionPriority:      int32(100 - i),
			},
		}, metav1.CreateOptions{}))
	}
	return nil
}

// StartSampleAPIServer starts Kubernetes' sample extension server, registers it as wardle.example.com/v1beta1 and
// v1alpha1, and waits until it is available. more are appended to its arguments; later ones override.
func (c *Cluster) StartSampleAPIServer(ctx context.Context, more ...string) (*Part, error) {
	b := Backend{Namespace: "wardle", Service: "api", GroupVersions: []string{"wardle.example.com/v1beta1", "wardle.example.com/v1alpha1"}}
	return c.StartExtension(ctx, "sample-apiserver", &b, more...)
}

// StartExtension starts an extension server, a program of package tools, at b's only address or on loopback, and
// registers b, whose port and CA it chooses. more are appended to the program's arguments; later ones override.
func (c *Cluster) StartExtension(ctx context.Context, program string, b *Backend, more ...string) (p *Part, err error) {
	defer try.Catch(&err)
	path := try.Get(c.cfg.tool(ctx, program))
	b.CAFile = c.PKI.Serving.CertFile
	e, args, err := c.ExtensionArgs(b)
	try.Do(err)
	kubeconfig := lastOf(args, "--kubeconfig=", "")
	ready := e.Serves("/readyz", c.Admin())
	switch program {
	case "sample-apiserver":
		args = append(args, "--etcd-servers="+lastOf(more, "--etcd-servers=", c.etcdURL), "--etcd-prefix=/registry/wardle.example.com")
		if c.Endpoint().Serves("/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies", c.Admin())(ctx) != nil {
			args = append(args, "--disable-admission-plugins=MutatingAdmissionPolicy") // it waits for what Kubernetes serves since 1.36
		}
	case "metrics-server":
		ready = e.Serves("/livez", c.Admin()) // it is ready only once it has scraped
		args = append(args, "--kubelet-insecure-tls", "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP",
			"--metric-resolution=10s", "--kubelet-request-timeout=5s") // 10 s is the minimum
	default: // of the custom-metrics library
		args[slices.Index(args, "--kubeconfig="+kubeconfig)] = "--lister-kubeconfig=" + kubeconfig
	}
	if b.Addresses != nil {
		ready = Listens(strings.TrimPrefix(e.URL, "https://"))
	}
	p = try.Get(c.Run(ctx, Command{
		Name: program + "." + b.Namespace, Path: path, Args: append(args, more...), Env: []string{"KUBECONFIG=" + kubeconfig}, Ready: ready,
	}))
	return p, c.Register(ctx, *b)
}

// ExtensionArgs issues the certificates of an extension server at b's address or on loopback, chooses b.Port, and
// returns its endpoint and the arguments for any program based on k8s.io/apiserver.
func (c *Cluster) ExtensionArgs(b *Backend) (e Endpoint, args []string, err error) {
	defer try.Catch(&err)
	name, host := b.Service+"."+b.Namespace, c.cfg.Loopback
	if b.Addresses != nil {
		host = b.Addresses[0]
	}
	serving := try.Get(c.PKI.Serving.Issue(name, Leaf{User: b.Service, Names: []string{name + ".svc", "localhost", host}}))
	// It uses an identity of its own to ask kube-apiserver about callers (TokenReview,
	// SubjectAccessReview, the request-header ConfigMap).
	kubeconfig := try.Get(c.Kubeconfig(c.Endpoint(), name+"-client", Leaf{User: b.Service, Groups: []string{mastersGroup}}))
	b.Port = try.Get(c.cfg.FreePorts(1))[0]
	return Endpoint{URL: url("https", host, b.Port), CAFile: c.PKI.Serving.CertFile}, []string{
		"--bind-address=" + host, fmt.Sprintf("--secure-port=%d", b.Port),
		"--tls-cert-file=" + serving.CertFile, "--tls-private-key-file=" + serving.KeyFile,
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
	}, nil
}

// WaitProbed waits until f's probes of the APIServices have passed.
func (c *Cluster) WaitProbed(ctx context.Context, f *Front, names ...string) error {
	return eventually(ctx, f.Endpoint.Probed(c.Admin(), names...), f.Part.Done())
}

// WaitAvailable waits until e answers for every given group-version.
func (c *Cluster) WaitAvailable(ctx context.Context, e Endpoint, groupVersions ...string) error {
	for _, gv := range groupVersions {
		if err := eventually(ctx, e.Serves("/apis/"+gv, c.Admin()), nil); err != nil {
			return fmt.Errorf("waiting for %s: %w", gv, err)
		}
	}
	return nil
}
