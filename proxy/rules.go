package proxy

import (
	"cmp"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// exempt are the users that no rule stops, unless somebody impersonates them: Fairleads, by the
// names that docs/operations.md gives them, and the apiservers' own requests.
var exempt = []string{ //nolint:gochecknoglobals // nothing writes it
	"system:fairlead", "system:serviceaccount:kube-system:fairlead", user.APIServerUser, "system:kube-aggregator",
}

// rule finds the rules for a request that may be answered, and whose user is decided. Nil: nobody knows the user.
func (p *Proxy) rule(d *Decision, h *Head, u user.Info) {
	g := d.rules
	if d.rules = nil; g == nil || d.spared(g) {
		return
	}
	switch {
	case d.Impersonator != nil:
	case d.Credentials.Impersonates && h.get("impersonate-user") != "":
		d.ask(g, h, u)
		u = h.impersonated()
	case u != nil && slices.Contains(exempt, u.GetName()):
		return
	}
	d.Rule, d.DryRun = d.find(g, h, &d.Request, u)
}

// ask finds the rule of who asks to be somebody else: the name may be made up, and costs the apiserver a decision. A
// limit of the request holds for them, too. A Deny does if it denies to impersonate, which an apiserver authorizes as a
// request of its own, unless whom they name has an Allow, as to break glass: the apiserver refuses those who may not.
func (d *Decision) ask(g *policy.Gates, h *Head, u user.Info) {
	name := h.get("impersonate-user")
	if name == "" || u != nil && slices.Contains(exempt, u.GetName()) { // without a name the filter does nothing
		return
	}
	if c, _ := d.find(g, h, impersonating(name), u); c != nil && c.Action == policy.Deny {
		if as, _ := d.find(g, h, &d.Request, h.impersonated()); as == nil || as.Action != policy.Allow {
			d.asker = c
			return
		}
	}
	if c, _ := d.find(g, h, &d.Request, u); c != nil && c.Action != policy.Deny && c.Action != policy.Allow {
		d.asker = c
	}
}

// impersonating returns what an apiserver asks its authorizer before somebody passes for a user (impersonation.go).
func impersonating(name string) *Request {
	r := &Request{IsResourceRequest: true, Verb: "impersonate", Resource: "users", Name: name}
	if namespace, name, err := serviceaccount.SplitUsername(name); err == nil {
		r.Resource, r.Namespace, r.Name = "serviceaccounts", namespace, name
	}
	return r
}

func (d *Decision) find(g *policy.Gates, h *Head, r *Request, u user.Info) (found, dry *policy.Gate) {
	q := r.ForPolicy(u, "")
	if g.Agents {
		q.UserAgent = h.get("user-agent")
	}
	if g.Sources {
		q.Source = h.source(d.Credentials.Kind == authn.KindFrontProxy)
	}
	q.WholeList = g.Lists && q.Verb == "list" && unlimited(&q, h.RawQuery)
	return g.Find(&q)
}

// spared reports whether no rule stops a request, whoever sends it: health checks, by which kubelets and load balancers
// judge the apiserver, pages, of which APIServices that are served here are none, and those for the policy itself.
func (d *Decision) spared(g *policy.Gates) bool {
	r := &d.Request
	if !r.IsResourceRequest {
		first, _, _ := strings.Cut(strings.TrimPrefix(r.Path, "/"), "/")
		return first == "livez" || first == "readyz" || first == "healthz" ||
			d.route == registry.RouteOwn && first != "apis"
	}
	return r.Resource == "configmaps" && r.APIGroup == "" && r.Name != "" &&
		g.Map == types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

const maxPage = 10_000 // kube-apiserver reads as many at once (maxLimit of storage/etcd3): who asks for more means all

// unlimited reports whether a list has neither a limit above 0 nor a resourceVersion that the watch cache serves, which
// has no events, and is not of one object. With a continue token the apiserver reads all for one name, too.
func unlimited(q *policy.Request, rawQuery string) bool {
	version, _ := param(rawQuery, "resourceVersion")
	match, _ := param(rawQuery, "resourceVersionMatch")
	token, _ := param(rawQuery, "continue")
	text, _ := param(rawQuery, "limit")
	limit, _ := strconv.ParseInt(text, 10, 64) // 0 if it is none, which the apiserver refuses
	events := q.Resource == "events" && (q.APIGroup == "" || q.APIGroup == "events.k8s.io")
	return (version == "" || match == "Exact" || token != "" || events) && (limit <= 0 || limit > maxPage) &&
		(q.Name == "" || q.Namespace == "" || token != "")
}

// source returns the client's address: behind a trusted front proxy the last in X-Forwarded-For, which it has added.
func (h *Head) source(proxied bool) netip.Addr {
	a, _ := netip.ParseAddr(h.RemoteIP)
	if list := h.list("x-forwarded-for"); proxied {
		if last, err := netip.ParseAddr(strings.TrimSpace(list[strings.LastIndexByte(list, ',')+1:])); err == nil {
			a = last
		}
	}
	return a.Unmap().WithZone("")
}

// admit asks the rules that match, once a request is about to be answered. Its places are left when the request ends.
func (x *exchange) admit() *apierrors.StatusError {
	d := &x.decision
	if d.Action == Impersonate && d.rules != nil && !d.spared(d.rules) {
		d.ask(d.rules, x.head, d.User) // before the reviews that a name costs
	}
	if d.Rule == nil && d.DryRun == nil && d.asker == nil {
		return nil
	}
	from, now := d.source(x.head), time.Now() // not Arrived: a limiter whose time goes back fills twice
	if d.DryRun != nil {
		place, _, ok := d.DryRun.Enter(from, now)
		if x.places[2] = place; ok {
			d.DryRun = nil
		}
	}
	for i, c := range [...]*policy.Gate{d.asker, d.Rule} {
		if c == nil || c == d.entered { // one rule may be both
			continue
		}
		place, wait, ok := c.Enter(from, now)
		if x.places[i], d.entered = place, c; !ok {
			d.Rule = c
			return errRule(c, wait)
		}
	}
	return nil
}

func (x *exchange) leave() {
	for i := range x.places {
		x.places[i].Leave()
	}
}

// errRule is a rule's refusal. wait is how long it will last, zero if nobody knows.
func errRule(g *policy.Gate, wait time.Duration) *apierrors.StatusError {
	why := "rule " + strconv.Quote(g.Name) + " of the cluster's policy " + cmp.Or(g.Limit(), "refuses this request")
	if g.Message != "" {
		why += ": " + g.Message
	}
	if g.Action == policy.Deny {
		return statusError(http.StatusForbidden, metav1.StatusReasonForbidden, why)
	}
	return apierrors.NewTooManyRequests(why, max(retrySoon, int(math.Ceil(wait.Seconds()))))
}
