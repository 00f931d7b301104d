// Package advice says what to check about a backend that cannot be used: one text for one cause, on
// the status page, in explain and in lint. It keeps nothing, so all goroutines may use it.
package advice

import (
	_ "embed" // symptoms
	"strings"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Of returns what to check about a remote entry that cannot be used, or whose endpoint fails, with a message. The
// verdict's reason is the finding; the message tells kinds of it apart. It returns "" if it does not know.
func Of(e *registry.Entry, message string) string {
	named, bundle := "spec.service of the APIService", "spec.caBundle"
	if e.Rule != nil { // in the policy
		named, bundle = "service at "+e.Rule.Where, "its bundle at "+e.Rule.Where
	} else if e.Front != "" && e.Backend.URLs == "" { // by the spec the cluster reaches Fairlead, and verifies it
		named, bundle = "annotation fairlead.dev/service", "annotation fairlead.dev/ca-bundle"
	}
	if e.Backend.CAFrom != "" && e.Rule == nil {
		bundle = "the bundle of fairlead.dev/ca-from"
	}
	switch b := e.Backend; e.Verdict.Reason {
	case registry.ReasonServiceNotFound:
		return "service " + b.Namespace + "/" + b.Service + " does not exist: create it, or correct " + named
	case registry.ReasonInvalidCABundle:
		return bundle + " has no usable certificate: check what injects it; or the object of fairlead.dev/ca-from " +
			"has none, is gone, or forbidden (ClusterRole system:fairlead-ca-from)"
	}
	return strings.NewReplacer("spec.service of the APIService", named, "spec.caBundle", bundle).Replace(For(message))
}

// symptoms maps parts of a problem, or of an error text, to advice.
//
//go:embed symptoms.txt
var symptoms string

// For returns what to check about a problem of an entry, or the error text of a request, "" if it is unknown.
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
