// Package advice says what to check about a backend that cannot be used: one text for one cause, on
// the status page, in explain and in lint. It keeps nothing, so all goroutines may use it.
package advice

import (
	"cmp"
	_ "embed" // symptoms
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
		unusable = fmt.Sprintf("the EndpointSlices of %s have ready endpoints, but no port with the name that "+
			"the Service gives its port %d (or with none): correct what writes them", service, e.Backend.Port)
	}
	named := "spec.service of the APIService"
	if e.Rule != nil {
		named = "service at " + e.Rule.Where // in the policy
	}
	denied := service + " cannot be used as it is: see the message, and check that Fairlead may dial its addresses"
	return cmp.Or(map[string]string{
		registry.ReasonServiceNotFound: service + " does not exist: create it, or correct " + named,
		registry.ReasonServicePortError: fmt.Sprintf("%s has no usable port %d: "+
			"compare its ports with spec.service.port of the APIService", service, e.Backend.Port),
		registry.ReasonServiceAccessError:   denied,
		registry.ReasonEndpointsAccessError: denied,
		registry.ReasonEndpointsNotFound: service + " has no EndpointSlice: does it have a selector, " +
			"and do pods match it?",
		registry.ReasonMissingEndpoints: unusable,
		registry.ReasonInvalidCABundle: "spec.caBundle has no usable certificate: check what injects it; or the " +
			"object of fairlead.dev/ca-from has none, is gone, or forbidden (ClusterRole system:fairlead-ca-from)",
		registry.ReasonInvalidURL: "correct the annotation fairlead.dev/url of the APIService; " +
			"if it is intended, see --allow-url-backends and --allow-loopback-backends",
		registry.ReasonProtectedGroup: "only Kubernetes itself may serve this group; " +
			"if this is intended, list all others that are to be protected in --protected-groups",
	}[e.Verdict.Reason], For(e.Verdict.Message))
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
