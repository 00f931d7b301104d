package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// AccessRule says what happens to the requests that it matches, before anybody answers them: the first that matches
// decides, and without one nothing changes. Nobody is let in: who is allowed is authenticated and authorized.
type AccessRule struct {
	Name string `json:"name"` // unique in the policy, and seen in answers, logs and metrics
	// Match matches as a FlowSchema's rules do, but what is left out is no condition: without subjects it is anybody,
	// without both kinds of rules any request to a resource. With impersonation the user is who is named; who asks has
	// only the limits, and a Deny of the verb impersonate (proxy/rules.go).
	Match flowcontrolv1.PolicyRulesWithSubjects `json:"match"`

	UserAgents []string `json:"userAgents"` // values, or prefixes that end in *. Clients choose theirs
	Sources    []string `json:"sources"`    // addresses and networks (CIDR) of clients
	// WholeLists matches only lists with neither resourceVersion nor a limit of at most 10,000: the apiserver reads all
	// objects, and holds them in memory, unless a field selector names one in a namespace.
	WholeLists bool   `json:"wholeLists"`
	Action     Action `json:"action"`
	// PerSecond and Burst belong to Rate. Zero Burst means what a second allows, at least one.
	PerSecond float64 `json:"perSecond"`
	Burst     int32   `json:"burst"`
	Max       int32   `json:"max"` // belongs to InFlight. A watch counts until it ends
	// Shared: all callers together have the limit of Rate or InFlight. If false, each user (an impersonator, too) has
	// it for itself; where the user is not known, each token, and without one each address.
	Shared  bool   `json:"shared"`
	Message string `json:"message"` // for who is refused
	DryRun  bool   `json:"dryRun"`  // the rule is counted and logged, and the next one decides
}

// Action is what an AccessRule does.
type Action string

// The actions.
const (
	Allow    Action = "Allow"    // ends the list: no later rule refuses the request
	Deny     Action = "Deny"     // answers with 403
	Rate     Action = "Rate"     // answers with 429 what exceeds PerSecond, on average
	InFlight Action = "InFlight" // answers with 429 what comes while Max requests are under way
)

const (
	maxMessage      = 1024 // bytes: a refusal is an answer of a few lines
	maxRulesOfMatch = 16   // bounds what is compared with a request for one rule
	// minPerSecond is one request in 100 seconds, maxPerSecond more than a process forwards.
	minPerSecond, maxPerSecond = 0.01, 1e6
	maxAgent                   = 256 // bytes, of which the access log has as many
)

func (r *AccessRule) check(at *field.Path) (wrong field.ErrorList) {
	bad := func(child string, value any, message string) {
		wrong = append(wrong, field.Invalid(at.Child(child), value, message))
	}
	if errs := validation.IsDNS1123Subdomain(r.Name); len(errs) > 0 {
		bad("name", r.Name[:min(len(r.Name), maxAgent)], errs[0])
	}
	if all := []Action{Allow, Deny, Rate, InFlight}; !slices.Contains(all, r.Action) {
		wrong = append(wrong, field.NotSupported(at.Child("action"), r.Action, all))
	}
	switch rated, counted := r.Action == Rate, r.Action == InFlight; {
	case rated && !(r.PerSecond >= minPerSecond && r.PerSecond <= maxPerSecond):
		bad("perSecond", r.PerSecond, fmt.Sprintf("it must be between %v and %.0f", minPerSecond, maxPerSecond))
	case !rated && (r.PerSecond != 0 || r.Burst != 0):
		bad("perSecond", r.PerSecond, "perSecond and burst are for action Rate")
	case r.Burst < 0 || float64(r.Burst) > max(1, r.PerSecond*maxRefill.Seconds()):
		bad("burst", r.Burst, fmt.Sprintf("it must be between 0 and what %v allow", maxRefill))
	case counted != (r.Max > 0) || r.Max < 0:
		bad("max", r.Max, "at least 1, for action InFlight alone")
	case r.Shared && !rated && !counted:
		bad("shared", true, "shared is for the actions Rate and InFlight")
	}
	r.Message = strings.TrimSpace(r.Message)
	unprintable := strings.ContainsFunc(r.Message, func(c rune) bool { return !unicode.IsPrint(c) })
	if text := r.Message; len(text) > maxMessage || unprintable {
		bad("message", text[:min(len(text), maxAgent)], fmt.Sprintf("one line of at most %d bytes", maxMessage))
	}
	m := &r.Match
	conditions := len(m.Subjects) + len(m.ResourceRules) + len(m.NonResourceRules) + len(r.UserAgents) + len(r.Sources)
	if conditions == 0 && !r.WholeLists {
		wrong = append(wrong, field.Required(at.Child("match"), "a condition: without one it would match all requests"))
	}
	wrong = slices.Concat(wrong, r.checkMatch(at.Child("match")), checkValues(at.Child("userAgents"), r.UserAgents),
		few(at.Child("sources"), r.Sources, maxValues))
	for i, a := range r.UserAgents {
		if len(a) > maxAgent {
			wrong = append(wrong, field.TooLong(at.Child("userAgents").Index(i), "", maxAgent))
		}
	}
	for i, s := range r.Sources {
		if _, valid := network(s); !valid {
			wrong = append(wrong, field.Invalid(at.Child("sources").Index(i), s[:min(len(s), 64)],
				"an address, or a network such as 10.0.0.0/8"))
		}
	}
	return wrong
}

// few returns what is wrong with a list's length. An empty one, of a template, must not mean what one left out does.
func few[T any](at *field.Path, list []T, most int) (wrong field.ErrorList) {
	if len(list) > most {
		wrong = field.ErrorList{field.TooMany(at, len(list), most)}
	} else if list != nil && len(list) == 0 {
		wrong = field.ErrorList{field.Required(at, "it is empty, so nothing would match")}
	}
	return wrong
}

// Limit says what Rate and InFlight allow. Empty means no limit.
func (r *AccessRule) Limit() string {
	return map[Action]string{
		Rate:     "allows " + strconv.FormatFloat(r.PerSecond, 'g', -1, 64) + " requests a second",
		InFlight: "allows " + strconv.Itoa(int(r.Max)) + " requests at a time",
	}[r.Action] + map[bool]string{true: " in all"}[r.Shared]
}

// network parses an address or a network. Mapped IPv4 addresses are IPv4's, as those of clients.
func network(s string) (p netip.Prefix, valid bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		p = netip.PrefixFrom(a, a.BitLen())
	} else {
		p, _ = netip.ParsePrefix(s)
	}
	if a := p.Addr(); a.Is4In6() {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked(), p.IsValid()
}

// checkMatch has the rules for FlowSchemas (pkg/apis/flowcontrol/validation of k8s.io/kubernetes, which is no library).
func (r *AccessRule) checkMatch(at *field.Path) (wrong field.ErrorList) {
	m := &r.Match
	wrong = slices.Concat(few(at.Child("subjects"), m.Subjects, maxValues),
		few(at.Child("resourceRules"), m.ResourceRules, maxRulesOfMatch-len(m.NonResourceRules)),
		few(at.Child("nonResourceRules"), m.NonResourceRules, maxRulesOfMatch))
	for i, s := range m.Subjects {
		if _, ok := subject(&s); !ok {
			wrong = append(wrong, field.Invalid(at.Child("subjects").Index(i), s.Kind, "kind User, Group or "+
				"ServiceAccount, with the field user.name, group.name, or serviceAccount.namespace and name"))
		}
	}
	values := func(at *field.Path, values []string, what string, valid func(string) bool) {
		wrong = append(wrong, few(at, values, maxValues)...)
		if values == nil {
			wrong = append(wrong, field.Required(at, what))
		} else if len(values) > 1 && slices.Contains(values, "*") {
			wrong = append(wrong, field.Invalid(at, values, `if "*" is present, it must be the only value`))
		}
		// One that no request has would make a rule that stops nobody.
		if i := slices.IndexFunc(values, func(v string) bool { return v != "*" && !valid(v) }); i >= 0 {
			wrong = append(wrong, field.Invalid(at.Index(i), values[i][:min(len(values[i]), 64)], what+", or * alone"))
		}
	}
	const verbs, methods = "get list watch create update patch delete deletecollection proxy",
		"get head post put patch delete options"
	ofResources := verbs
	if r.Action == Allow || r.Action == Deny { // limits hold for what is asked as somebody else, not for asking it
		ofResources += " impersonate"
	}
	in := func(of string) func(string) bool {
		return func(v string) bool { return slices.Contains(strings.Fields(of), v) }
	}
	whole := func(v string) bool { return v != "" && !strings.ContainsAny(v, "*/") }
	group := func(v string) bool { return v == "" || whole(v) && v != "core" } // as documents call ""
	resource := func(v string) bool { return whole(strings.Replace(v, "/", ".", 1)) }
	for i, rr := range m.ResourceRules {
		at := at.Child("resourceRules").Index(i)
		values(at.Child("verbs"), rr.Verbs, ofResources, in(ofResources))
		values(at.Child("apiGroups"), rr.APIGroups, `a group without its version, "" for core`, group)
		values(at.Child("resources"), rr.Resources, "a resource, or resource/subresource", resource)
		if len(rr.Namespaces) > 0 || !rr.ClusterScope {
			values(at.Child("namespaces"), rr.Namespaces, "a namespace, or clusterScope: true", whole)
		}
	}
	for i, nr := range m.NonResourceRules {
		at := at.Child("nonResourceRules").Index(i)
		values(at.Child("verbs"), nr.Verbs, methods, func(v string) bool { // beside one, FlowSchemas have list, too
			return in(methods)(v) || in(verbs)(v) && slices.ContainsFunc(nr.Verbs, in(methods))
		})
		values(at.Child("nonResourceURLs"), nr.NonResourceURLs, "a path, or one that ends in /*", func(v string) bool {
			return strings.HasPrefix(v, "/") && strings.Count(v, "/") <= maxDepth &&
				!strings.Contains(strings.TrimSuffix(v, "/*"), "*")
		})
	}
	return wrong
}

// subject returns what a subject matches: a user or a group ("*" means all), or the service accounts of a namespace.
func subject(s *flowcontrolv1.Subject) (k key, ok bool) {
	switch {
	case s.Kind == flowcontrolv1.SubjectKindUser && s.User != nil:
		k = key{by: byUser, value: s.User.Name}
	case s.Kind == flowcontrolv1.SubjectKindGroup && s.Group != nil:
		k = key{by: byGroup, value: s.Group.Name}
	case s.Kind == flowcontrolv1.SubjectKindServiceAccount && s.ServiceAccount != nil &&
		len(validation.IsDNS1123Label(s.ServiceAccount.Namespace)) == 0 && s.ServiceAccount.Name != "":
		if k = (key{by: byAccounts, value: s.ServiceAccount.Namespace}); s.ServiceAccount.Name != "*" {
			k = key{by: byUser, value: serviceaccount.MakeUsername(s.ServiceAccount.Namespace, s.ServiceAccount.Name)}
		}
	}
	return k, k.value == "*" || k.value != "" && !strings.HasSuffix(k.value, "*") // prefixes do not count
}

func checkValues(at *field.Path, values []string) field.ErrorList {
	errs := few(at, values, maxValues)
	for i, v := range values {
		if v == "" || strings.Contains(strings.TrimSuffix(v, "*"), "*") {
			errs = append(errs, field.Invalid(at.Index(i), v[:min(len(v), 64)], "a value, or a prefix that ends in *"))
		}
	}
	return errs
}
