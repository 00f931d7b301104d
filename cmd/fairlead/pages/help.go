package pages

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Runbooks is the address of the alerts' runbooks.
const Runbooks = "https://github.com/fairlead-proxy/fairlead/blob/main/docs/runbooks/"

// help adds what is wrong with an APIService and what to do, or nothing if all is well.
func help(a *answer.APIService, e *registry.Entry) {
	judged(a, e)
	if len(a.Limits) > 0 && a.Available() { // often because an endpoint is dead
		a.Cause = strings.TrimSuffix(a.Limits[0].String()+"; "+a.Cause, "; ")
		a.Advice, a.Runbook = limited(a), Runbooks+"FairleadSaturated.md"
	}
	if fails := a.Fails(); fails != "" {
		a.Cause = strings.TrimSuffix(fails+"; "+a.Cause, "; ")
		a.Runbook, a.Command = Runbooks+"FairleadBackendErrors.md", command(e)
		a.Advice = "500: see the log of the backend; others: kubectl get --raw '/fairlead/tap?path=" + a.Path() +
			"/&seconds=1' says who failed, and how"
	}
}

// judged adds what is wrong by the verdict and the endpoints.
func judged(a *answer.APIService, e *registry.Entry) {
	if e.Local() || e.Hidden != "" || e.Verdict.Available() && e.Settings.Maintenance == "" &&
		len(e.Problems) == 0 && a.Healthy() == len(a.Endpoints) {
		if serve := different(a.Endpoints); serve != "" {
			a.Cause = "its URLs lead to different servers, so that some requests get 404: " + serve
			a.Advice = "requests are spread over the URLs of fairlead.dev/url: name replicas of one server only"
		}
		return
	}
	a.Cause, a.Advice = diagnoseEntry(e)
	a.Cause = Brief(a.Cause)
	a.Command = command(e)
	page := "FairleadAPIServiceDown"
	switch {
	case e.Settings.Maintenance != "":
		return // on purpose
	case e.Verdict.Available() && len(e.Problems) > 0:
		page = "FairleadRegistryProblems"
	case e.Verdict.Available():
		page = "FairleadEndpointDown"
	}
	a.Runbook = Runbooks + page + ".md"
}

func different(all []answer.Endpoint) string {
	var each []string
	kinds := map[string]bool{}
	for _, e := range all {
		if e.Serves != "" {
			each, kinds[e.Serves] = append(each, e.Address+" has "+e.Serves), true
		}
	}
	if len(kinds) < 2 {
		return ""
	}
	return strings.Join(each, ", ")
}

func limited(a *answer.APIService) string {
	theirs := "have who sends most send fewer at once (kubectl get --raw '/fairlead/tap?path=" + a.Path() +
		"/&seconds=1' shows requests with their agents), or "
	switch limit := a.Limits[0].Name; limit {
	case "inflight", "longrunning":
		return theirs + "scale the backend out and raise fairlead.dev/max-" + limit + " of the APIService"
	case "server":
		return theirs + "raise --max-requests-inflight or --max-mutating-requests-inflight"
	}
	return theirs + "raise the process's limit of file descriptors, of which sessions get an eighth"
}

// Brief removes from a probe's message which address was probed, which precedes the finding.
func Brief(message string) string {
	head, asked, _ := strings.Cut(message, "failing or missing response from ")
	_, found, ok := strings.Cut(asked, ": ")
	if !ok {
		return message
	}
	if _, why, ok := strings.Cut(found, `": `); ok && strings.HasPrefix(found, `Get "`) {
		found = why
	}
	return head + found
}

// command returns a shell command to copy, or none: authors of APIServices must not control by names what others run.
func command(e *registry.Entry) string {
	b := e.Backend
	if b == nil {
		return ""
	}
	for _, name := range []string{e.Name, b.Namespace, b.Service} {
		odd := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' }
		if strings.ContainsFunc(name, odd) || strings.HasPrefix(name, "-") {
			return ""
		}
	}
	switch {
	case b.Service == "" || e.Verdict.Available() && len(e.Problems) > 0:
	case e.Verdict.Reason == registry.ReasonServiceNotFound:
		return "kubectl -n " + b.Namespace + " get services"
	case e.Verdict.Reason == registry.ReasonInvalidCABundle, e.Verdict.Reason == registry.ReasonInvalidURL,
		e.Verdict.Reason == registry.ReasonProtectedGroup, e.Settings.Maintenance != "":
	default:
		in := "kubectl -n " + b.Namespace
		return in + " describe service " + b.Service + "; " + in + " get pods -o wide"
	}
	return "kubectl get apiservice " + e.Name + " -o yaml"
}

// diagnose returns what is wrong with the entry that a request leads to, which a describes, and what to check.
func diagnose(d *proxy.Decision, a *answer.APIService) (cause, do string) {
	if d.Entry != nil && d.Entry.Hidden != "" {
		return "the policy hides it (" + d.Entry.Hidden + ")", ""
	} else if d.Entry != nil && a.Available() && a.Cause != "" {
		return a.Cause, a.Advice
	} else if d.Entry != nil {
		return diagnoseEntry(d.Entry)
	} else if d.Err != nil {
		return d.Err.Error(), ""
	}
	return "", ""
}

func diagnoseEntry(e *registry.Entry) (cause, do string) {
	usable := e.Verdict.Available() || e.Local()
	bad, last := Unhealthy(e.Endpoints)
	switch {
	case e.Settings.Maintenance != "":
		return "it is in maintenance: " + e.Settings.Maintenance, "remove the annotation fairlead.dev/maintenance"
	case !usable && e.Verdict.Reason == "":
		return "no probe of it has ended yet", "wait a few seconds"
	case !usable:
		return e.Verdict.Message, advice.Of(e, e.Verdict.Message)
	case len(e.Problems) > 0:
		said := strings.Join(e.Problems, "; ")
		return said, cmp.Or(advice.For(said), "correct the APIService: its faulty parts are ignored")
	case bad > 0:
		return fmt.Sprintf("%d of %d endpoints are unhealthy and get no requests: %s",
			bad, len(e.Endpoints), last.Message), advice.Of(e, last.Message)
	}
	return "", ""
}

// Unhealthy returns how many endpoints are unhealthy, and the last of them.
func Unhealthy(all []registry.Endpoint) (bad int, last registry.Endpoint) {
	for _, e := range all {
		if e.Health == registry.Unhealthy {
			bad, last = bad+1, e
		}
	}
	return bad, last
}
