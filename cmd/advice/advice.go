// Package advice says what to check about a backend that cannot be used: one text for one cause, on
// the status page, in explain and in lint. It keeps nothing, so all goroutines may use it.
package advice

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Of returns what to check about an entry that cannot be used. The verdict's reason is the finding;
// the probe's message tells kinds of it apart. It returns "" if it does not know.
func Of(e *registry.Entry) string {
	if e.Backend == nil {
		return ""
	}
	service := "service " + e.Backend.Namespace + "/" + e.Backend.Service
	unusable := service + " has no usable endpoint: are its pods ready, and do their addresses belong to the cluster?"
	if strings.HasPrefix(e.Verdict.Message, "ready endpointslices have no port") {
		unusable = fmt.Sprintf("the EndpointSlices of %s have ready endpoints, but no port with the name that the Service gives its port %d (or with none): correct what writes them", service, e.Backend.Port)
	}
	named := "spec.service of the APIService"
	if e.Rule != nil {
		named = "service at " + e.Rule.Where // in the policy
	}
	denied := service + " cannot be used as it is: see the message, and check that Fairlead may dial its addresses"
	return cmp.Or(map[string]string{
		registry.ReasonServiceNotFound:      service + " does not exist: create it, or correct " + named,
		registry.ReasonServicePortError:     fmt.Sprintf("%s has no usable port %d: compare its ports with spec.service.port of the APIService", service, e.Backend.Port),
		registry.ReasonServiceAccessError:   denied,
		registry.ReasonEndpointsAccessError: denied,
		registry.ReasonEndpointsNotFound:    service + " has no EndpointSlice: does it have a selector, and do pods match it?",
		registry.ReasonMissingEndpoints:     unusable,
		registry.ReasonInvalidCABundle:      "spec.caBundle (or the ConfigMap of fairlead.dev/ca-from) contains no usable certificate: check what injects it",
		registry.ReasonInvalidURL:           "correct the annotation fairlead.dev/url of the APIService; if it is intended, see --allow-url-backends and --allow-loopback-backends",
		registry.ReasonProtectedGroup:       "only Kubernetes itself may serve this group; if this is intended, remove the group from --protected-groups",
	}[e.Verdict.Reason], For(e.Verdict.Message))
}

const (
	noRoute   = "there is no route to the endpoint's address, or a firewall rejects: nodes of the control plane must reach the pod network"
	redirects = "the backend redirects: an API server must answer itself"
	hangs     = "the backend accepts connections but does not answer within 5 s: it hangs, or waits for another server"
	hangsUp   = "the backend closes connections without an answer: see its log"
)

// symptoms maps parts of a probe's error text to advice; the first match counts. The texts are
// those of Go's standard library and of health's probe.
func symptoms() [][2]string {
	return [][2]string{
		{`ClusterIP "None"`, "the service is headless, and this Fairlead uses ClusterIPs: run it with --enable-aggregator-routing"},
		{" is refused: ", "Fairlead does not dial such an address: correct the Service, or set --allow-loopback-backends (also of lint) if it is a loopback address on purpose"},
		{"no endpoints available", "no pod behind the service is ready: check its selector, its pods and their readiness"},
		// Texts of certs/trust.
		{"ExpiredCertificate: ", "the backend's serving certificate has expired: renew it"},
		{"NotYetValidCertificate: ", "the backend's serving certificate is not valid yet: are the clocks right?"},
		{"ExpiredCA: ", "the CA in spec.caBundle has expired: renew it, and then the backend's certificate"},
		{"system's root store", "spec.caBundle is empty, so that only public CAs count: set it to the CA that signed the backend's certificate, or fairlead.dev/ca-from"},
		{"UnknownAuthority: ", "the backend's serving certificate is not signed by spec.caBundle: compare its issuer with the bundle, and update the stale one"},
		{"WrongServerName: ", "the certificate is another server's (compare the addresses of the service's endpoints and its selector with that server's), or lacks the service's name: issue it for <service>.<namespace>.svc (the host of fairlead.dev/url, if there is one), or set fairlead.dev/tls-server-name"},
		{"MissingSAN: ", "the backend's serving certificate has no subject alternative name: issue it for <service>.<namespace>.svc (the host of fairlead.dev/url, if there is one)"},
		{"InsecureSHA1: ", "the backend's serving certificate is signed with SHA-1: issue a new one"},
		{"InvalidCertificate: ", "the backend's serving certificate cannot be used: issue a new one"},
		// Failures of servers and networks.
		{": 401", "the backend does not accept Fairlead's proxy client certificate: compare its CA and common name with requestheader-client-ca-file and requestheader-allowed-names in ConfigMap kube-system/extension-apiserver-authentication"},
		{": 403", "the backend refuses system:kube-aggregator, a member of system:masters, access to its discovery: its authorization is broken, or it trusts another common name than the proxy client certificate's"},
		{": 404", "the backend answers, but does not serve this group-version"},
		{": 301", redirects}, {": 302", redirects}, {": 307", redirects}, {": 308", redirects},
		{"x509: certificate signed by unknown authority", "certificate-authority of the kubeconfig is not the CA of that server's certificate, or the address is another server's"},
		{"x509: certificate is valid for ", "that server's certificate lacks this address: name one that it has (--local-apiserver, --local-apiservers-from), or add this one to it"},
		{"x509: certificate has expired or is not yet valid", "renew that server's certificate, or set the clocks"},
		{"connection refused", "nothing listens at the endpoint's address, or a firewall rejects: is the port right, is the process up?"},
		{"dial tcp: lookup ", "the host name cannot be resolved: check the DNS server of this machine, and the external name of the service or the host of fairlead.dev/url"},
		{"i/o timeout", "the endpoint's address does not answer: a NetworkPolicy, a firewall or a dead node drops the packets"},
		{"no route to host", noRoute}, {"network is unreachable", noRoute},
		{"deadline exceeded", hangs}, {"Client.Timeout", hangs},
		{"EOF", hangsUp}, {"connection reset", hangsUp},
		{"first record does not look like a TLS handshake", "the backend does not speak TLS at this port"},
	}
}

// For returns what to check about the error text of a request to an endpoint, "" if it is unknown.
func For(message string) string {
	for _, s := range symptoms() {
		if strings.Contains(message, s[0]) {
			return s[1]
		}
	}
	return ""
}
