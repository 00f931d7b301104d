package registry

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry/behind"
)

// prefix begins Fairlead's annotations. An unknown name with it is reported: a typing error, or a newer release's.
const prefix = "fairlead.dev/"

// annotated are the parsed annotations of an APIService.
type annotated struct {
	settings   Settings
	serverName string
	caFrom     string
	http1      bool
	bundle     string // PEM; it and insecure count beside behind.Service
	insecure   bool
	urls       urls
	problems   []string
}

// defaults returns the settings of an APIService without annotations.
func (o *Options) defaults() Settings {
	p := o.Defaults
	p.RequestTimeout = cmp.Or(p.RequestTimeout, time.Minute)  // kube-apiserver's --request-timeout
	p.MaxInFlight = cmp.Or(p.MaxInFlight, 400)                // its --max-requests-inflight, for one backend
	p.MaxLongRunning = cmp.Or(p.MaxLongRunning, 10_000)       // at most about 100 MB of stream state
	p.CAOverlap = max(cmp.Or(p.CAOverlap, time.Minute), 0)    // a kubelet takes that long to refresh a mounted Secret
	p.ProbeInterval = cmp.Or(p.ProbeInterval, 10*time.Second) // a third of kube-aggregator's resync
	p.PingTimeout = cmp.Or(p.PingTimeout, 5*time.Second)      // upstream's health check of h2 connections takes 45 s
	return p
}

const maxProblems = 10 // bounds the annotations that problems name: an object has room for 16,000, each a line of log

// readAnnotations reads the settings from an APIService's annotations. Errors are only reported: a
// typing error in an annotation must not make an API unavailable. An error in a URL must: see urls.
func readAnnotations(annotations map[string]string, defaults Settings) annotated {
	s := annotated{settings: defaults}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ours := strings.CutPrefix(key, prefix)
		if !ours {
			continue
		}
		switch err := s.set(name, annotations[key]); {
		case err == nil:
		case len(s.problems) < maxProblems:
			s.problems = append(s.problems, fmt.Sprintf("annotation %s: %v; it is ignored", key, err))
		case len(s.problems) == maxProblems:
			s.problems = append(s.problems, "more annotations are ignored, too")
		}
	}
	return s
}

// set applies one annotation. The bounds prevent that one APIService harms others, as by a probe every millisecond.
func (s *annotated) set(name, value string) error {
	p := &s.settings
	switch name {
	case "request-timeout":
		// An hour: longer requests are long-running and have an annotation of their own.
		return setDuration(&p.RequestTimeout, value, time.Second, time.Hour)
	case "max-inflight":
		return setInt(&p.MaxInFlight, value, 1, 100_000)
	case "max-longrunning":
		return setInt(&p.MaxLongRunning, value, 1, 1_000_000)
	case "long-running-subresources":
		return setNames(&p.LongRunningSubresources, value)
	case "tls-server-name":
		return setServerName(&s.serverName, value)
	case "ca-from":
		return setCAFrom(&s.caFrom, value)
	case "ca-rotation-overlap":
		// A day: a CA that was replaced because it is compromised must not stay trusted for longer.
		return setDuration(&p.CAOverlap, value, 0, 24*time.Hour)
	case "probe-interval":
		return setDuration(&p.ProbeInterval, value, time.Second, 10*time.Minute)
	case "ping-timeout":
		return setDuration(&p.PingTimeout, value, 500*time.Millisecond, 5*time.Minute)
	case "http1":
		return setBool(&s.http1, value)
	case "service":
		_, err := behind.Parse(value)
		return err
	case "ca-bundle":
		s.bundle = value // as spec.caBundle, it is read with the Backend
		return nil
	case "insecure-skip-tls-verify":
		return setBool(&s.insecure, value)
	case "url":
		s.urls = readURLs(value)
		return nil
	case "maintenance":
		return setMessage(&p.Maintenance, value, maxMessage)
	case "owner":
		return setMessage(&p.Owner, value, maxOwner)
	}
	return fmt.Errorf("unknown name")
}

func setDuration(to *time.Duration, value string, low, high time.Duration) error {
	return setWithin(to, value, "a duration such as 30s", time.ParseDuration, low, high)
}

func setBool(to *bool, value string) error {
	if *to = value == "true"; !*to && value != "false" {
		return fmt.Errorf("%q is neither true nor false", bounded(value))
	}
	return nil
}

func setInt(to *int, value string, low, high int) error {
	return setWithin(to, value, "a whole number", strconv.Atoi, low, high)
}

func setWithin[T cmp.Ordered](to *T, value, kind string, parse func(string) (T, error), low, high T) error {
	v, err := parse(value)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not %s", bounded(value), kind)
	case v < low || v > high:
		return fmt.Errorf("%v is outside %v to %v", v, low, high)
	}
	*to = v
	return nil
}

const maxSubresources = 32 // far above the number in any API. Every request searches the list

func setNames(to *[]string, value string) error {
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			return fmt.Errorf("%q is not the name of a subresource", bounded(name))
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		if len(names) > maxSubresources {
			return fmt.Errorf("more than %d names", maxSubresources)
		}
	}
	*to = names
	return nil
}

func setServerName(to *string, value string) error {
	addr, err := netip.ParseAddr(value)
	if (err != nil || addr.Zone() != "") && len(validation.IsDNS1123Subdomain(value)) > 0 {
		return fmt.Errorf("%q is neither a DNS name nor an IP address", bounded(value))
	}
	*to = value
	return nil
}

func setCAFrom(to *string, value string) error {
	name, key, ok := strings.Cut(value, "/")
	if name == trustBundle { // a signer's have colons in their names
		ok = key != "" && len(content.IsPathSegmentName(key)) == 0
	} else {
		ok = ok && len(validation.IsDNS1123Subdomain(name))+len(validation.IsConfigMapKey(key)) == 0
	}
	if !ok {
		return fmt.Errorf("%q is neither <configmap name>/<key> nor %s/<name>", bounded(value), trustBundle)
	}
	*to = value
	return nil
}

const (
	maxMessage = 256 // about two lines of a terminal. The message is in every refused response
	maxOwner   = 63  // the limit for values of Kubernetes labels: alerts are routed by it
)

func setMessage(to *string, value string, most int) error {
	value = strings.TrimSpace(value)
	switch {
	case value == "":
		return fmt.Errorf("it is empty")
	case len(value) > most:
		return fmt.Errorf("it is longer than %d bytes", most)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("it has unprintable characters")
	}
	*to = value
	return nil
}

// bounded shortens untrusted text.
func bounded(s string) string { return printable.Cut(s, 64) }

// urlAnnotation names a backend by comma-separated URLs. Its Service is then not looked up.
const urlAnnotation = prefix + "url"

// maxURLs bounds the URLs of an APIService: each is probed, and each host is compared with the certificate.
const maxURLs = 32

type urls struct {
	addresses []string // host:port, sorted, without duplicates
	// fault says why they cannot be used. The APIService is then unavailable: its requests were not
	// for the local apiserver, nor for a Service that it names, too. Empty means usable or absent.
	fault string
}

// readURLs parses the annotation. A URL has only a host and perhaps a port: a path could select an API not authorized.
func readURLs(value string) (u urls) {
	for text := range strings.SplitSeq(value, ",") {
		address, err := addressOf(strings.TrimSpace(text))
		if err != nil {
			return urls{fault: err.Error()}
		}
		u.addresses = append(u.addresses, address)
		if len(u.addresses) > maxURLs {
			return urls{fault: fmt.Sprintf("more than %d URLs", maxURLs)}
		}
	}
	slices.Sort(u.addresses)
	u.addresses = slices.Compact(u.addresses)
	return u
}

// addressOf returns a URL's host:port.
func addressOf(text string) (string, error) {
	u, err := url.Parse(text)
	notASCII := func(r rune) bool { return r > unicode.MaxASCII } // lower case turns some of them into ASCII
	// A URL that differs has user information, a path, a query, a fragment, or an escaped host.
	if err != nil || text != "https://"+u.Host || strings.ContainsFunc(text, notASCII) {
		return "", fmt.Errorf("%q is not https://<host> or https://<host>:<port>", bounded(text))
	}
	var host string
	if err := setServerName(&host, strings.ToLower(u.Hostname())); err != nil {
		return "", err
	}
	port, err := strconv.Atoi(cmp.Or(u.Port(), strconv.Itoa(defaultPort)))
	if err != nil || len(validation.IsValidPortNum(port)) > 0 {
		return "", fmt.Errorf("%q has a port outside 1 to 65535", bounded(text))
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

func (u *urls) given() bool { return u.fault != "" || len(u.addresses) > 0 }

// check sets a fault that does not depend on the annotation's text alone.
func (u *urls) check(o *Options, ref *apiregistrationv1.ServiceReference, caFrom string) {
	switch {
	case u.fault != "" || !u.given():
	case !o.AllowURLs:
		u.fault = "URLs are not allowed here (--allow-url-backends): " +
			"anybody who may write APIServices could choose where the proxy client certificate is used"
	case caFrom != "" && ref == nil && !inTrustBundle(caFrom):
		u.fault = "the ConfigMap of " + prefix + "ca-from is in the namespace of spec.service, and there is none: " +
			"name one, it is not looked up"
	}
}

// backend returns the Backend that the URLs name. The certificate may be for any of the hosts: each
// URL is trusted with the requests for all of them, and with our client certificate.
func (u *urls) backend() Backend {
	if u.fault != "" {
		return Backend{URLs: "no usable URL"}
	}
	var names []string
	for _, address := range u.addresses {
		host, _, _ := net.SplitHostPort(address)
		names = append(names, host)
	}
	names = slices.Compact(names)
	return Backend{URLs: "https://" + strings.Join(u.addresses, ",https://"), ServerName: strings.Join(names, ",")}
}

// fromURLs is resolve for URLs, by the rules for endpoints of a slice.
func (r *resolver) fromURLs(u *urls) Verdict {
	if u.fault != "" {
		return fault(ReasonInvalidURL, "annotation %s: %s", urlAnnotation, u.fault)
	}
	var found family
	for _, address := range u.addresses {
		host, port, _ := net.SplitHostPort(address)
		number, _ := strconv.ParseInt(port, 10, 32) // addressOf has checked it
		r.add(&found, &discoveryv1.Endpoint{Addresses: []string{host}}, int32(number))
	}
	if r.endpoints = found.endpoints; len(r.endpoints) == 0 {
		return fault(ReasonInvalidURL, "annotation %s has only addresses that are refused: %s",
			urlAnnotation, strings.Join(r.refused, ", "))
	}
	return Verdict{}
}

// claimant describes the remote that an APIService names. Empty means Local.
func claimant(object *apiregistrationv1.APIService) string {
	if value, ok := object.Annotations[urlAnnotation]; ok {
		return fmt.Sprintf("url %q", bounded(value))
	}
	if isLocal(object) {
		return ""
	}
	ref := behind.Server(object)
	return fmt.Sprintf("service/%s in %q", bounded(ref.Name), bounded(ref.Namespace))
}
