package advice

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// The advice is for whom the message blames: each text as its source writes it.
func TestFor(t *testing.T) {
	for message, want := range map[string]string{
		`UnknownAuthority: the backend's certificate "x" is signed by "y", which the system's root store does not hold`:                                         "spec.caBundle is empty",
		`UnknownAuthority: the backend's certificate "x" is signed by "y", which the bundle ("z") does not hold`:                                                "compare its issuer with the bundle",
		`WrongServerName: the backend's certificate "x" is not valid for "a.ext.svc", only for "b.ext.svc"`:                                                     "another server's",
		"dial tcp 10.0.0.1:443: connect: no route to host":                                                                                                      "firewall rejects",
		"dial tcp 10.0.0.1:443: connect: network is unreachable":                                                                                                "there is no route",
		"dial tcp 10.0.0.1:443: connect: connection refused":                                                                                                    "firewall rejects",
		`Get "https://10.0.0.1:6443/readyz": tls: failed to verify certificate: x509: certificate signed by unknown authority`:                                  "certificate-authority",
		`Get "https://10.0.0.1:6443/readyz": tls: failed to verify certificate: x509: certificate is valid for 10.0.0.2, not 10.0.0.1`:                          "--local-apiserver",
		"tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-11-29T16:00:00Z is after 2026-01-01T00:00:00Z": "clock",
		"bad status from https://10.0.0.1:6443/readyz: 500: [+]ping ok\n[-]etcd failed: reason withheld\n":                                                      "does not reach its etcd",
		"bad status from https://lb:6443/readyz: 500: [-]fairlead failed: reason withheld\nreadyz check failed\n":                                               "own one",
		"bad status from https://lb:6443/readyz: 508: {\"kind\":\"Status\"}":                                                                                    "own one",
		"dial tcp: lookup api.example.com on 10.96.0.10:53: read udp 10.96.0.10:53: read: connection refused":                                                   "check the DNS server",
		"dial tcp: lookup api.example.com on 10.96.0.10:53: dial udp 10.96.0.10:53: socket: too many open files":                                                "the check descriptors",
		"dial tcp: lookup api.example.com: i/o timeout":                                                                                                         "timeout:1",
		"dial tcp [2001:db8::1]:443: connect: cannot assign requested address":                                                                                  "IP family",
		"dial unix /run/konnectivity.sock: connect: connection refused":                                                                                         "the egress proxy",
		"the egress proxy: it answers 503 Service Unavailable":                                                                                                  "the egress proxy",
		"the egress proxy: remote error: tls: bad certificate":                                                                                                  "the egress proxy",
		"the egress proxy: tls: failed to verify certificate: x509: certificate signed by unknown authority":                                                    "the egress proxy",
		"the egress proxy: dial tcp 10.0.0.1:8131: socket: too many open files":                                                                                 "the check descriptors",
		"tls: failed to verify certificate: x509: cannot validate certificate for 10.0.0.1 because it doesn't contain any IP SANs":                              "--local-apiserver",
		"bad status from https://10.0.0.1:5000/apis/x/v1: 503: not yet":                                                                                         "an error of its own",
		`bad status from https://10.0.0.1/apis/x/v1: 403: forbidden: User "system:anonymous" cannot get path "/apis/x/v1"`:                                      "proxy client certificate: compare its CA",
		`forbidden: User "system:anonymous" cannot get path "/fairlead/status"`:                                                                                 "without a credential",
		`bad status from https://10.0.0.1/apis/x/v1: 403: forbidden: User "system:kube-aggregator" cannot get path "/apis/x/v1"`:                                "refuses system:kube-aggregator",
		"bad status from https://10.0.0.1/apis/x/v1: 429: too many requests":                                                                                    "an error of its own",
		`Get "https://10.0.0.1:443/apis/x/v1": remote error: tls: unknown certificate authority`:                                                                "proxy client certificate",
		"failing or missing response from https://10.0.0.1:443/apis/x/v1: context deadline exceeded":                                                            "an egress proxy",
		`Get "https://10.0.0.1/apis/x/v1": remote error: tls: unsupported certificate`:                                                                          "proxy client certificate",
		`Get "https://10.0.0.1/apis/x/v1": remote error: tls: protocol version not supported`:                                                                   "speaks TLS 1.2",
		"endpoint refused: 127.0.0.1 is a loopback address":                                                                                                     "--allow-loopback-backends",
		"it hides CustomResourceDefinition boats.a.io: service/one":                                                                                             "delete the APIService",
		"the cluster sends it to service a/b:443, and its own condition says: False, Reason: EOF":                                                               "does not reach Fairlead",
		"annotation fairlead.dev/max-inflight: 500000 is outside 1 to 100000; it is ignored":                                                                    "correct the APIService",
		"something else": "",
	} {
		check.Has(t, For(message), want)
		check.Same(t, want == "", For(message) == "", "%s: no advice", message)
	}
}

// What names a missing Service, or has a stale bundle, is to be corrected: the APIService's spec, its annotations
// while the spec is for Fairlead, or the policy.
func TestWhatIsToCorrect(t *testing.T) {
	for _, tt := range []struct {
		entry           registry.Entry
		caFrom          string
		service, bundle string
	}{
		{service: "spec.service of the APIService", bundle: "spec.caBundle"},
		{caFrom: "ca/ca.crt", service: "spec.service of the APIService", bundle: "the bundle of fairlead.dev/ca-from"},
		{entry: registry.Entry{Front: "kube-system/fairlead:443"}, service: "annotation fairlead.dev/service", bundle: "annotation fairlead.dev/ca-bundle"},
		{entry: registry.Entry{Rule: &policy.Rule{Where: "policy.yaml:7"}}, service: "service at policy.yaml:7", bundle: "its bundle at policy.yaml:7"},
	} {
		e := &tt.entry
		e.Backend = &registry.Backend{Namespace: "a", Service: "b", CAFrom: tt.caFrom}
		e.Verdict.Reason = registry.ReasonServiceNotFound
		check.Same(t, "service a/b does not exist: create it, or correct "+tt.service, Of(e, ""), "the Service")
		e.Verdict.Reason = registry.ReasonPassed // of another endpoint
		check.Has(t, Of(e, `UnknownAuthority: the backend's certificate "x" is signed by "y"`), "is not signed by "+tt.bundle+": ")
		check.Has(t, Of(e, `no service port 443 found for service "b"`), "compare its ports with "+tt.service)
		e.Verdict.Reason = registry.ReasonInvalidCABundle
		check.Has(t, Of(e, ""), tt.bundle+" has no usable certificate")
	}
}
