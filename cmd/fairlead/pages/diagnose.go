package pages

import (
	"fmt"
	"strings"

	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/registry"
)

// diagnose says what is wrong with the entry that a request leads to, and what to look at. The verdict's reason is the finding; the message of the probe tells its kinds
// apart.
func diagnose(d *proxy.Decision) (cause, advice string) {
	e := d.Entry
	switch {
	case e == nil && d.Err != nil:
		return d.Err.Error(), ""
	case e == nil:
		return "", ""
	case e.Policy.Maintenance != "":
		return "it is in maintenance: " + e.Policy.Maintenance, "remove the annotation fairlead.dev/maintenance from the APIService"
	case e.Verdict.Available() || e.Local():
		return worked(e)
	}
	if e.Verdict.Reason == "" {
		return "no probe of it has ended yet", "wait a few seconds"
	}
	return e.Verdict.Message, adviceOf(e)
}

// worked is about an entry that can be used: what is worked around.
func worked(e *registry.Entry) (cause, advice string) {
	if len(e.Problems) > 0 {
		return strings.Join(e.Problems, "; "), "mend the APIService: what is faulty in it is ignored"
	}
	bad := 0
	for i := range e.Endpoints {
		if e.Endpoints[i].Health == registry.Unhealthy {
			bad++
			cause = e.Endpoints[i].Message
		}
	}
	if bad == 0 {
		return "", ""
	}
	return fmt.Sprintf("%d of %d endpoints are unhealthy and get no requests: %s", bad, len(e.Endpoints), cause), symptom(cause)
}

func adviceOf(e *registry.Entry) string {
	if e.Backend == nil {
		return ""
	}
	service := "service " + e.Backend.Namespace + "/" + e.Backend.Service
	switch e.Verdict.Reason {
	case registry.ReasonServiceNotFound:
		return service + " does not exist: create it, or mend spec.service of the APIService"
	case registry.ReasonServicePortError:
		return fmt.Sprintf("%s has no usable port %d: compare its ports with spec.service.port of the APIService", service, e.Backend.Port)
	case registry.ReasonServiceAccessError, registry.ReasonEndpointsAccessError:
		return service + " cannot be used as it is: see the message, and whether Fairlead may dial what it names"
	case registry.ReasonEndpointsNotFound:
		return service + " has no EndpointSlice: does it have a selector, and do pods match it?"
	case registry.ReasonMissingEndpoints:
		return service + " has no endpoint that may be used: are its pods ready, and do their addresses belong to the cluster?"
	case registry.ReasonInvalidCABundle:
		return "spec.caBundle (or the ConfigMap of fairlead.dev/ca-from) holds no usable certificate: whoever injects it has not done so, or has damaged it"
	case registry.ReasonInvalidURL:
		return "correct the annotation fairlead.dev/url of the APIService; where it is what you mean, see --allow-url-backends and --allow-loopback-backends"
	case registry.ReasonProtectedGroup:
		return "only Kubernetes itself may serve this group; if the claim is meant, take the group out of --protected-groups"
	}
	return symptom(e.Verdict.Message)
}

const (
	redirects = "the backend redirects: an API server must answer itself"
	hangs     = "the backend accepts connections but does not answer within 5 s: it hangs, or waits for something of its own"
	hangsUp   = "the backend closes connections without an answer: look at its log"
)

// symptoms are what a probe's error text tells about its cause, the first that matches. The texts are those of Go's standard library and of health's probe.
func symptoms() [][2]string {
	return [][2]string{
		{`ClusterIP "None"`, "the service is headless, and this Fairlead goes to cluster addresses: run it with --enable-aggregator-routing"},
		{"no endpoints available", "no pod behind the service is ready: look at its selector, its pods and their readiness"},
		// What certs/trust finds.
		{"ExpiredCertificate: ", "the backend's serving certificate is out of its time: renew it"},
		{"NotYetValidCertificate: ", "the backend's serving certificate is not valid yet: are the clocks right?"},
		{"ExpiredCA: ", "the CA in spec.caBundle is out of its time: renew it, and then the backend's certificate"},
		{"UnknownAuthority: ", "the backend's serving certificate is not signed by spec.caBundle: which of the two was rotated without the other?"},
		{"WrongServerName: ", "the backend's serving certificate lacks the service's name: issue it for <service>.<namespace>.svc (the host of fairlead.dev/url, if there is one), or set fairlead.dev/tls-server-name"},
		{"MissingSAN: ", "the backend's serving certificate has no subject alternative name: issue it for <service>.<namespace>.svc (the host of fairlead.dev/url, if there is one)"},
		{"InsecureSHA1: ", "the backend's serving certificate is signed with SHA-1: issue it anew"},
		{"InvalidCertificate: ", "the backend's serving certificate cannot be used: issue it anew"},
		// What servers and networks do.
		{": 401", "the backend does not accept Fairlead's proxy client certificate: compare its CA and common name with requestheader-client-ca-file and requestheader-allowed-names in ConfigMap kube-system/extension-apiserver-authentication"},
		{": 403", "the backend refuses system:kube-aggregator, a member of system:masters, its own discovery: its authorization is broken, or it trusts another common name than the proxy client certificate's"},
		{": 404", "the backend answers, but does not serve this group-version"},
		{": 301", redirects}, {": 302", redirects}, {": 307", redirects}, {": 308", redirects},
		{"connection refused", "nothing listens at the endpoint's address: is the port right, is the process up?"},
		{"i/o timeout", "no answer comes back from the endpoint's address: a NetworkPolicy, a firewall or a dead node swallows the packets"},
		{"no route to host", "there is no route to the endpoint's address: nodes of the control plane must reach the pod network"},
		{"deadline exceeded", hangs}, {"Client.Timeout", hangs},
		{"EOF", hangsUp}, {"connection reset", hangsUp},
		{"first record does not look like a TLS handshake", "the backend does not speak TLS at this port"},
		{"no such host", "the external name of the service, or the host of fairlead.dev/url, does not resolve"},
	}
}

func symptom(message string) string {
	for _, s := range symptoms() {
		if strings.Contains(message, s[0]) {
			return s[1]
		}
	}
	return ""
}
