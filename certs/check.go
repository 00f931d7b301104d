package certs

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// Finding is one fault, or a coming one, with advice.
type Finding struct {
	// Severity is SeverityError when something does not work, SeverityWarning when everything works
	// for now, and SeverityToDo for a step of an installation that is still to come.
	Severity string `json:"severity"`
	Object   string `json:"object"`  // "proxy client certificate", "serving certificate", an APIService
	Message  string `json:"message"` // what is wrong. Never empty
	Do       string `json:"do"`      // how to correct it. Never empty
}

// The severities.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
	SeverityToDo    = "to do"
)

// String returns the finding on one line.
func (f Finding) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s: %s: %s; %s", f.Severity, f.Object, f.Message, f.Do)), " ")
}

// Findings are what several checks have found.
type Findings []Finding

// Error adds a finding with SeverityError.
func (f *Findings) Error(object, do, format string, a ...any) {
	f.Add(SeverityError, object, do, format, a...)
}

// Warn adds a finding with SeverityWarning.
func (f *Findings) Warn(object, do, format string, a ...any) {
	f.Add(SeverityWarning, object, do, format, a...)
}

// Add adds a finding.
func (f *Findings) Add(severity, object, do, format string, args ...any) {
	*f = append(*f, Finding{severity, object, fmt.Sprintf(format, args...), do})
}

// soon is how long before its expiry a certificate causes a warning: people need thirty days. A
// short-lived certificate is renewed sooner, so a quarter of its lifetime is enough.
const soon = 30 * 24 * time.Hour

// Expiry adds a finding for each of a chain, leaf first, that is not valid, or soon will not be. what says whose it is.
func (f *Findings) Expiry(object string, chain []*x509.Certificate, what, do string) {
	now := time.Now()
	for _, c := range trust.Path(chain) {
		left, name := c.NotAfter.Sub(now), trust.Describe(c).Subject
		switch {
		case now.Before(c.NotBefore):
			f.Error(object, "wait, or set the clock",
				"%s %q is not valid before %s", what, name, c.NotBefore.UTC().Format(time.RFC3339))
		case left <= 0:
			f.Error(object, do, "%s %q expired at %s", what, name, c.NotAfter.UTC().Format(time.RFC3339))
		case left < min(soon, c.NotAfter.Sub(c.NotBefore)/4):
			f.Warn(object, do, "%s %q expires in %s", what, name, duration.HumanDuration(left))
		}
	}
}

// CheckProxyClient checks whether servers that follow the cluster's authentication ConfigMap accept the certificate
// that Fairlead presents, leaf first, as a front proxy's, and whether that has the header names that Fairlead sends.
// authentication is the ConfigMap's data, nil if it could not be read. Without a chain only it is checked.
func (f *Findings) CheckProxyClient(chain []*x509.Certificate, authentication map[string][]byte) {
	object := "proxy client certificate"
	if len(chain) == 0 {
		object = "ConfigMap kube-system/extension-apiserver-authentication"
	}
	f.Expiry(object, chain, "certificate",
		"renew it; Fairlead loads a new pair from the same files without a restart")
	headers, err := parseHeaders(authentication)
	switch {
	case len(chain) == 0 && len(authentication["requestheader-client-ca-file"]) == 0:
		f.Add(SeverityToDo, object,
			"use deploy/overlays/managed, or start kube-apiserver with --requestheader-client-ca-file",
			"the cluster has no request-header CA, so it accepts users from no front proxy")
		return
	case authentication == nil:
		f.Warn(object, "allow reading ConfigMap kube-system/extension-apiserver-authentication "+
			"(Role extension-apiserver-authentication-reader)",
			"it could not be compared with the cluster's request-header CA")
		return
	case err != nil:
		f.Error(object, "correct kube-system/extension-apiserver-authentication",
			"the authentication ConfigMap is broken: %v", err)
		return
	case len(chain) > 0:
		f.frontProxy(object, chain, authentication, headers.allowedNames)
	}
	f.headers(object, headers)
}

func (f *Findings) frontProxy(object string, chain []*x509.Certificate, data map[string][]byte, allowed []string) {
	cas, err := bundle.Parse(data["requestheader-client-ca-file"])
	if err != nil {
		f.Error(object, "start kube-apiserver with --requestheader-client-ca-file",
			"the cluster has no usable request-header CA: %v", err)
		return
	}
	if _, err := verify(chain, bundle.Pool(cas)); err != nil {
		f.Error(object, "have it signed by that CA (kubeadm: front-proxy-ca), with extended key usage clientAuth",
			"the cluster's request-header CA %s does not verify %q: %v",
			trust.Subjects(cas), trust.Describe(chain[0]).Subject, err)
	}
	if cn := chain[0].Subject.CommonName; len(allowed) > 0 && !slices.Contains(allowed, cn) {
		f.Error(object, fmt.Sprintf("add %q to kube-apiserver's --requestheader-allowed-names, "+
			"or use a certificate with one of these names", cn),
			"its common name %q is not among the cluster's allowed names %q", cn, allowed)
	}
	clients, err := optionalBundle(data["client-ca-file"])
	if err != nil {
		f.Error(object, "correct kube-apiserver's --client-ca-file", "the cluster's client CA is broken: %v", err)
	}
	shared := clientTrust{client: clients, proxy: cas, allowed: allowed}
	switch err := shared.check(); {
	case err != nil:
		f.Error(object, "use separate CAs, or set kube-apiserver's --requestheader-allowed-names",
			"in this cluster every user can impersonate every other: %v", err)
	case len(allowed) == 0:
		f.Warn(object, "set kube-apiserver's --requestheader-allowed-names",
			"every certificate of the cluster's request-header CA counts as a front proxy, because any name is allowed")
	}
}

func (f *Findings) headers(object string, h requestHeaders) {
	for _, want := range []struct {
		name, flag string
		trusted    []string
		severity   string
	}{
		{"X-Remote-User", "--requestheader-username-headers", h.Username, SeverityError},
		{"X-Remote-Group", "--requestheader-group-headers", h.Group, SeverityError},
		{"X-Remote-Extra-", "--requestheader-extra-headers-prefix", h.ExtraPrefix, SeverityWarning},
		{"X-Remote-Uid", "--requestheader-uid-headers", h.UID, SeverityWarning},
	} {
		if !slices.ContainsFunc(want.trusted, func(s string) bool { return strings.EqualFold(s, want.name) }) {
			f.Add(want.severity, object, fmt.Sprintf("start kube-apiserver with %s=%s", want.flag, want.name),
				"the cluster does not trust %s, so that part of a user's identity is lost", want.name)
		}
	}
}

// CheckServing checks whether a serving chain suits the names that clients use. object is the Object of the findings.
func (f *Findings) CheckServing(object string, chain []*x509.Certificate, names []string) {
	leaf := chain[0]
	f.Expiry(object, chain, "certificate", "renew it; Fairlead loads a new pair from the same files without a restart")
	for _, name := range names {
		if err := leaf.VerifyHostname(name); err != nil {
			f.Error(object, fmt.Sprintf("have it issued with %q among its subject alternative names", name),
				"clients that use %q will refuse it: %v", name, err)
		}
	}
	serves := func(u x509.ExtKeyUsage) bool { return u == x509.ExtKeyUsageServerAuth || u == x509.ExtKeyUsageAny }
	if len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0 && !slices.ContainsFunc(leaf.ExtKeyUsage, serves) {
		f.Error(object, "have it issued with extended key usage serverAuth", "it is not a server certificate")
	}
}

// CheckBundle checks a bundle of ours, such as that of --client-ca-file. object is the Object of the findings.
func (f *Findings) CheckBundle(object string, data []byte) {
	cas, err := bundle.Parse(data)
	if err != nil {
		// That some parts can be read does not help: a reload takes all of it or nothing.
		f.Error(object, "repair the file; until then the last good bundle stays in force, and a restart fails",
			"it is not usable: %v", err)
		return
	}
	const do = "remove it if its successor is in the bundle already; " +
		"otherwise add its successor, then have the certificates issued anew"
	f.authorities(object, cas, do, do)
}

// authorities checks a bundle's CAs. One that is not valid beside another that is breaks nothing by itself.
func (f *Findings) authorities(object string, cas []*x509.Certificate, do, expired string) {
	now := time.Now()
	usable := slices.ContainsFunc(cas, func(c *x509.Certificate) bool {
		return now.Before(c.NotAfter) && !now.Before(c.NotBefore)
	})
	for _, c := range cas {
		before := len(*f)
		f.Expiry(object, []*x509.Certificate{c}, "CA", map[bool]string{false: do, true: expired}[now.After(c.NotAfter)])
		if len(*f) > before && usable {
			(*f)[before].Severity = SeverityWarning
		}
	}
}

// CheckBackend checks whether an APIService's bundle is sound, and whether it verifies the endpoints. data is the
// inline bundle or that of the ConfigMap. live has each endpoint's chain, leaf first, nil if it was not reached.
func (f *Findings) CheckBackend(object string, b *registry.Backend, data []byte, live map[string][]*x509.Certificate) {
	if b.Insecure {
		f.Warn(object, "give it a CA bundle, as cert-manager injects one, instead of insecureSkipTLSVerify",
			"its backend is not verified: an attacker in between reads every request and can send its own as any user")
		return
	}
	cas := f.bundle(object, data)
	used, sound := make(map[string]bool), true
	for _, endpoint := range slices.Sorted(maps.Keys(live)) {
		root, err := trust.VerifyChain(data, b.ServerName, live[endpoint])
		if sound = sound && err == nil; err == nil {
			used[trust.Describe(root).Fingerprint] = true
			f.Expiry(object, live[endpoint][:1], "endpoint "+endpoint+": certificate", "renew it at the backend")
		} else if live[endpoint] != nil { // else it was not reached, as the caller reports: it may need any CA
			f.Error(object, remedy(err, b.ServerName), "endpoint %s: %v", endpoint, err)
		}
	}
	for _, c := range cas {
		if sound && len(live) > 0 && !used[trust.Describe(c).Fingerprint] {
			f.Warn(object, "remove it once the rotation is over",
				"CA %q of its bundle verifies no endpoint", trust.Describe(c).Subject)
		}
	}
}

func (f *Findings) bundle(object string, data []byte) []*x509.Certificate {
	if len(data) == 0 {
		return nil // the system's roots
	}
	cas, err := bundle.Parse(data)
	switch {
	case len(cas) == 0:
		f.Error(object, "set it to the PEM of the CA that signed the backend's certificate",
			"its CA bundle is not usable: %v", err)
	case err != nil:
		f.Warn(object, "remove or repair that part", "a part of its CA bundle is ignored: %v", err)
	}
	f.authorities(object, cas, "add its successor to the bundle before the backend gets a certificate of the new CA",
		"remove it, and add its successor")
	return cas
}

func remedy(err *trust.Error, name string) string {
	named := fmt.Sprintf("have the backend's certificate issued for %q, "+
		"or name the one that it has in the annotation fairlead.dev/tls-server-name", name)
	return cmp.Or(map[string]string{
		"InvalidCABundle":        "repair the bundle",
		"ExpiredCA":              "renew the CA, put it into the bundle and have the backend's certificate issued anew",
		"ExpiredCertificate":     "renew the backend's certificate",
		"NotYetValidCertificate": "compare the clocks of the nodes",
		"MissingSAN":             named,
		"WrongServerName":        named,
		"InsecureSHA1":           "have the backend's certificate signed with SHA-256",
		"UnknownAuthority": "put the CA that signed the backend's certificate into its bundle, " +
			"or name its ConfigMap in the annotation fairlead.dev/ca-from",
	}[err.Reason()], "have the backend's certificate issued anew, with extended key usage serverAuth")
}
