package registry

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// urlAnnotation names an APIService's backend by one or several comma-separated URLs. Its Service
// is then not looked up.
const urlAnnotation = prefix + "url"

// maxURLs bounds the URLs of an APIService: each is probed, and each host is compared with the
// certificate.
const maxURLs = 32

// urls is the parsed annotation.
type urls struct {
	// addresses are host:port, sorted, without duplicates.
	addresses []string
	// fault says why they cannot be used. The APIService is then unavailable: its requests were not
	// meant for the local apiserver, nor for a Service that it also names. Empty means usable or
	// absent.
	fault string
}

// readURLs parses the annotation. A URL has a host and an optional port only: a path could select
// another API than the authorized one.
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

// given reports whether the annotation exists.
func (u *urls) given() bool { return u.fault != "" || len(u.addresses) > 0 }

// check sets a fault that does not depend on the annotation's text alone.
func (u *urls) check(o *Options, ref *apiregistrationv1.ServiceReference, caFrom string) {
	switch {
	case u.fault != "" || !u.given():
	case !o.AllowURLs:
		u.fault = "URLs are not allowed here (--allow-url-backends): anybody who may write APIServices could choose where the proxy client certificate is used"
	case caFrom != "" && ref == nil:
		u.fault = "the ConfigMap of " + prefix + "ca-from is in the namespace of spec.service, and there is none: name one, it is not looked up"
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
	return Backend{URLs: "https://" + strings.Join(u.addresses, ",https://"), ServerName: strings.Join(slices.Compact(names), ",")}
}

// fromURLs makes endpoints from URLs, by the rules for those of a slice.
func (r *resolver) fromURLs(u *urls) (res resolution) {
	for _, address := range u.addresses {
		host, port, _ := net.SplitHostPort(address)
		number, _ := strconv.ParseInt(port, 10, 32) // addressOf has checked it
		r.add(&res.endpoints, &res, &discoveryv1.Endpoint{Addresses: []string{host}}, int32(number))
	}
	switch {
	case u.fault != "":
		return fault(ReasonInvalidURL, "annotation %s: %s", urlAnnotation, u.fault)
	case len(res.endpoints) == 0:
		res.fault = fault(ReasonInvalidURL, "annotation %s has only addresses that are refused: %s", urlAnnotation, strings.Join(res.refused, ", ")).fault
	}
	return res
}

// claimant describes the remote that an APIService names. Empty means Local.
func claimant(object *apiregistrationv1.APIService) string {
	if value, ok := object.Annotations[urlAnnotation]; ok {
		return fmt.Sprintf("url %q", bounded(value))
	}
	if isLocal(object) {
		return ""
	}
	return fmt.Sprintf("service/%s in %q", object.Spec.Service.Name, object.Spec.Service.Namespace)
}
