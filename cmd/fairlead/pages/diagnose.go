package pages

import (
	"fmt"
	"strings"

	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/registry"
)

// diagnose returns what is wrong with the entry that a request leads to, and what to check.
func diagnose(d *proxy.Decision) (cause, do string) {
	switch {
	case d.Entry == nil && d.Err != nil:
		return d.Err.Error(), ""
	case d.Entry == nil:
		return "", ""
	}
	return diagnoseEntry(d.Entry)
}

func diagnoseEntry(e *registry.Entry) (cause, do string) {
	switch {
	case e.Policy.Maintenance != "":
		return "it is in maintenance: " + e.Policy.Maintenance, "remove the annotation fairlead.dev/maintenance from the APIService"
	case e.Verdict.Available() || e.Local():
		return workedAround(e)
	}
	if e.Verdict.Reason == "" {
		return "no probe of it has ended yet", "wait a few seconds"
	}
	return e.Verdict.Message, advice.Of(e)
}

// workedAround returns the faults of an entry that can be used nevertheless.
func workedAround(e *registry.Entry) (cause, do string) {
	if len(e.Problems) > 0 {
		return strings.Join(e.Problems, "; "), "correct the APIService: its faulty parts are ignored"
	}
	bad, cause := unhealthy(e.Endpoints)
	if bad == 0 {
		return "", ""
	}
	return fmt.Sprintf("%d of %d endpoints are unhealthy and get no requests: %s", bad, len(e.Endpoints), cause), advice.For(cause)
}

// unhealthy returns how many endpoints are unhealthy, and what is wrong with the last of them.
func unhealthy(all []registry.Endpoint) (bad int, cause string) {
	for i := range all {
		if all[i].Health == registry.Unhealthy {
			bad++
			cause = all[i].Message
		}
	}
	return bad, cause
}

// diagnoseLocal returns what is wrong with the local apiservers. If none is healthy, requests are
// sent to them nevertheless.
func diagnoseLocal(servers []registry.Endpoint) (cause, do string) {
	switch bad, cause := unhealthy(servers); bad {
	case 0:
		return "", ""
	case len(servers):
		return "no local apiserver is healthy: " + cause, advice.For(cause)
	default:
		return fmt.Sprintf("%d of %d local apiservers are unhealthy and get no requests: %s", bad, len(servers), cause), advice.For(cause)
	}
}
