// Package advice says what to check about a backend that cannot be used: one text for one cause, on
// the status page, in explain and in lint. It keeps nothing, so all goroutines may use it.
package advice

import (
	"cmp"
	_ "embed" // symptoms
	"strings"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Of returns what to check about a remote entry that cannot be used, or whose endpoint fails, with a message. The
// verdict's reason is the finding; the message tells kinds of it apart. It returns "" if it does not know.
func Of(e *registry.Entry, message string) string {
	service := "service " + e.Backend.Namespace + "/" + e.Backend.Service
	named, bundle := "spec.service of the APIService", "spec.caBundle"
	if e.Rule != nil { // in the policy
		named, bundle = "service at "+e.Rule.Where, "its bundle at "+e.Rule.Where
	} else if e.Front != "" && e.Backend.URLs == "" { // by the spec the cluster reaches Fairlead, and verifies it
		named, bundle = "annotation fairlead.dev/service", "annotation fairlead.dev/ca-bundle"
	}
	if e.Backend.CAFrom != "" && e.Rule == nil {
		bundle = "the bundle of fairlead.dev/ca-from"
	}
	return cmp.Or(map[string]string{
		registry.ReasonServiceNotFound:    service + " does not exist: create it, or correct " + named,
		registry.ReasonServicePortError:   service + " has no such port: compare its ports with " + named,
		registry.ReasonServiceAccessError: "set that annotation (docs/behind.md), or correct " + named,
		registry.ReasonEndpointsNotFound:  service + " has no EndpointSlice: does it have a selector that pods match?",
		registry.ReasonMissingEndpoints: cmp.Or(For(message), service+" has no usable endpoint: "+
			"are its pods ready, and do their addresses belong to the cluster?"),
		registry.ReasonInvalidCABundle: bundle + " has no usable certificate: check what injects it; or the " +
			"object of fairlead.dev/ca-from has none, is gone, or forbidden (ClusterRole system:fairlead-ca-from)",
		registry.ReasonInvalidURL: "correct the annotation fairlead.dev/url of the APIService; " +
			"if it is intended, see --allow-url-backends and --allow-loopback-backends",
		registry.ReasonProtectedGroup: "only Kubernetes itself may serve this group; " +
			"if this is intended, list all others that are to be protected in --protected-groups",
	}[e.Verdict.Reason], strings.ReplaceAll(For(message), "spec.caBundle", bundle))
}

// symptoms maps parts of a probe's error text to advice.
//
//go:embed symptoms.txt
var symptoms string

// For returns what to check about the error text of a request to an endpoint, "" if it is unknown.
func For(message string) string {
	for line := range strings.Lines(symptoms) {
		texts, advice, _ := strings.Cut(strings.TrimSpace(line), " => ")
		for text := range strings.SplitSeq(texts, " | ") {
			if advice != "" && strings.Contains(message, text) {
				return advice
			}
		}
	}
	return ""
}
