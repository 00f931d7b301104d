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
	bad := 0
	for i := range e.Endpoints {
		if e.Endpoints[i].Health == registry.Unhealthy {
			bad++
			cause = e.Endpoints[i].Message
		}
	}
	if bad == 0 {
		return "", ""
	}
	return fmt.Sprintf("%d of %d endpoints are unhealthy and get no requests: %s", bad, len(e.Endpoints), cause), advice.For(cause)
}
