package registry

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fairlead-proxy/fairlead/registry/printable"
)

// prefix is the prefix of Fairlead's annotations. An unknown name with it is reported: it is a
// typing error, or meant for a newer release.
const prefix = "fairlead.dev/"

// settings are the parsed annotations of an APIService.
type settings struct {
	policy     Policy
	serverName string
	caFrom     string
	http1      bool
	urls       urls
	problems   []string
}

// defaults returns the policy of an APIService without annotations.
func (o *Options) defaults() Policy {
	p := o.Defaults
	p.RequestTimeout = cmp.Or(p.RequestTimeout, time.Minute)  // kube-apiserver's --request-timeout
	p.MaxInFlight = cmp.Or(p.MaxInFlight, 400)                // kube-apiserver's --max-requests-inflight, for one backend
	p.MaxLongRunning = cmp.Or(p.MaxLongRunning, 10_000)       // at most about 100 MB of stream state
	p.CAOverlap = max(cmp.Or(p.CAOverlap, time.Minute), 0)    // a kubelet takes that long to refresh a mounted Secret
	p.ProbeInterval = cmp.Or(p.ProbeInterval, 10*time.Second) // a third of kube-aggregator's resync
	p.PingTimeout = cmp.Or(p.PingTimeout, 5*time.Second)      // upstream's health check of h2 connections takes 45 s
	p.LongRunningSubresources = slices.Clone(p.LongRunningSubresources)
	return p
}

// readAnnotations reads the settings from an APIService's annotations. Errors are reported and
// otherwise ignored: a typing error in an annotation must not make an API unavailable. An error in
// a URL must: see urls.
func readAnnotations(annotations map[string]string, defaults Policy) settings {
	s := settings{policy: defaults}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ours := strings.CutPrefix(key, prefix)
		if !ours {
			continue
		}
		if err := s.set(name, annotations[key]); err != nil {
			s.problems = append(s.problems, fmt.Sprintf("annotation %s: %v; it is ignored", key, err))
		}
	}
	return s
}

// set applies one annotation. The bounds prevent that one APIService harms others, for example by a
// limit of zero or a probe every millisecond.
func (s *settings) set(name, value string) error {
	p := &s.policy
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
		if s.http1 = value == "true"; !s.http1 && value != "false" {
			return fmt.Errorf("%q is neither true nor false", bounded(value))
		}
		return nil
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
	d, err := time.ParseDuration(value)
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 30s", bounded(value))
	}
	return setWithin(to, d, low, high)
}

func setInt(to *int, value string, low, high int) error {
	n, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("%q is not a whole number", bounded(value))
	}
	return setWithin(to, n, low, high)
}

func setWithin[T cmp.Ordered](to *T, value, low, high T) error {
	if value < low || value > high {
		return fmt.Errorf("%v is outside %v to %v", value, low, high)
	}
	*to = value
	return nil
}

// maxSubresources is far above the number in any API. Every request searches the list.
const maxSubresources = 32

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
	if addr, err := netip.ParseAddr(value); (err != nil || addr.Zone() != "") && len(validation.IsDNS1123Subdomain(value)) > 0 {
		return fmt.Errorf("%q is neither a DNS name nor an IP address", bounded(value))
	}
	*to = value
	return nil
}

func setCAFrom(to *string, value string) error {
	name, key, ok := strings.Cut(value, "/")
	if !ok || len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsConfigMapKey(key)) > 0 {
		return fmt.Errorf("%q is not <configmap name>/<key>", bounded(value))
	}
	*to = value
	return nil
}

const (
	// maxMessage is about two lines of a terminal. The message is in every refused response.
	maxMessage = 256
	// maxOwner is the limit for values of Kubernetes labels: alerts are routed by it.
	maxOwner = 63
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

// bounded shortens an untrusted string for a message.
func bounded(s string) string { return printable.Cut(s, 64) }
