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

// urlAnnotation names an APIService's backend in place of its Service, which is not looked up then: one URL or several, comma-separated.
const urlAnnotation = prefix + "url"

// maxURLs bounds the URLs of one APIService: each is probed, and a certificate is compared with the host of each.
const maxURLs = 32

// urls are what the annotation says.
type urls struct {
	// addresses are host:port, in order, none twice.
	addresses []string
	// fault is why they may not be used. An APIService that has one is unavailable: its requests were meant for somebody else than the Service
	// beside it, or the local apiserver. Empty: they may, or there are none.
	fault string
}

// readURLs parses the annotation. Each URL is a host and perhaps a port, and nothing else: a path could select another API than was authorized.
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

// addressOf is a URL's host:port.
func addressOf(text string) (string, error) {
	u, err := url.Parse(text)
	notASCII := func(r rune) bool { return r > unicode.MaxASCII } // some of it is ASCII in lower case
	// What differs has user information, a path, a query, a fragment, or an escaped host.
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

// given reports whether there is the annotation.
func (u *urls) given() bool { return u.fault != "" || len(u.addresses) > 0 }

// check looks at what the annotation cannot know.
func (u *urls) check(o *Options, ref *apiregistrationv1.ServiceReference, caFrom string) {
	switch {
	case u.fault != "" || !u.given():
	case !o.AllowURLs:
		u.fault = "URLs are not allowed here (--allow-url-backends): who may write APIServices would choose where the proxy client certificate goes"
	case caFrom != "" && ref == nil:
		u.fault = "the ConfigMap of " + prefix + "ca-from is in the namespace of spec.service, and there is none: name one, it is not looked up"
	}
}

// backend is the Backend that the URLs name. A certificate may be for the host of any: whoever is at one of them gets the requests, with our client
// certificate, that are meant for all.
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

// fromURLs makes endpoints of URLs, by the rules for those of a slice.
func (r *resolver) fromURLs(u *urls) (res resolution) {
	for _, address := range u.addresses {
		host, port, _ := net.SplitHostPort(address)
		number, _ := strconv.ParseInt(port, 10, 32) // addressOf made it
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

// claimant is who is to serve an APIService that is not Local. Empty: it is.
func claimant(object *apiregistrationv1.APIService) string {
	if value, ok := object.Annotations[urlAnnotation]; ok {
		return fmt.Sprintf("url %q", bounded(value))
	}
	if isLocal(object) {
		return ""
	}
	return fmt.Sprintf("service/%s in %q", object.Spec.Service.Name, object.Spec.Service.Namespace)
}
