package pages

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/registry"
)

// maxPath bounds what is explained: longer than any path that Kubernetes has.
const maxPath = 8 << 10

// serveExplain explains a request of whoever asks; kubectl's --as makes that anybody whom the caller may impersonate.
func (p *Pages) serveExplain(w http.ResponseWriter, r *http.Request) {
	target := r.URL.Query().Get("path")
	if !strings.HasPrefix(target, "/") || len(target) > maxPath {
		http.Error(w, "path must be given, and begin with a slash", http.StatusBadRequest)
		return
	}
	u, ok := request.UserFrom(r.Context())
	if !ok {
		http.Error(w, "nobody is known to ask", http.StatusUnauthorized)
		return
	}
	method := cmp.Or(strings.ToUpper(r.URL.Query().Get("method")), http.MethodGet)
	writeJSON(w, p.explain(method, target, u))
}

func (p *Pages) explain(method, target string, u user.Info) *answer.Explanation {
	h := &proxy.Head{Method: method}
	h.Path, h.RawQuery, h.HasQuery = strings.Cut(target, "?")
	d := p.cfg.Explain(h, u)
	x := &answer.Explanation{Method: method, Path: target, Verb: d.Request.Verb, Destination: destination(d.Action)}
	x.Why = append(x.Why, names(h.Path))
	if d.Entry != nil {
		a := p.apiService(d.Entry)
		x.APIService = &a
		for _, t := range p.cfg.Trust() {
			if t.APIService == a.Name {
				a.Trust = &t
			}
		}
	}
	x.Why = append(x.Why, p.claims(&d)...)
	x.Why = append(x.Why, leads(&d))
	if status, ok := errors.AsType[*apierrors.StatusError](d.Err); ok {
		x.Code, x.Message = int(status.ErrStatus.Code), status.ErrStatus.Message
	}
	x.Identity = identity(&d, u)
	x.Timeout = timeout(&d)
	x.Cause, x.Advice = diagnose(&d)
	return x
}

func destination(a proxy.Action) string {
	switch a {
	case proxy.ToLocal:
		return "local"
	case proxy.ToRemote:
		return "remote"
	case proxy.ToDocument:
		return "document"
	case proxy.ToPage:
		return "page"
	case proxy.ToHealth:
		return "health"
	}
	return "refused"
}

// names says what a path names.
func names(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "apis" && len(parts) > 2:
		return fmt.Sprintf("the path names version %s of group %s", parts[2], parts[1])
	case parts[0] == "apis" && len(parts) == 2 && parts[1] != "":
		return fmt.Sprintf("the path names group %s: its discovery document", parts[1])
	case parts[0] == "api" && len(parts) > 1:
		return fmt.Sprintf("the path names version %s of the core group", parts[1])
	}
	return "the path names no group-version"
}

// claims is the priority trail of the entry.
func (p *Pages) claims(d *proxy.Decision) []string {
	e := d.Entry
	if e == nil {
		return []string{"no APIService claims it"}
	}
	t := p.cfg.Table()
	claim := fmt.Sprintf("APIService %s claims it and is Local (spec.service is not set)", e.Name)
	if !e.Local() {
		claim = fmt.Sprintf("APIService %s claims it for %s", e.Name, cmp.Or(e.Backend.URLs, "service "+e.Backend.String()))
	}
	out := []string{claim}
	groups := t.Groups()
	at := slices.IndexFunc(groups, func(g *registry.Group) bool { return g.Name == e.GroupVersion.Group })
	if at < 0 {
		return out
	}
	g := groups[at]
	version := slices.IndexFunc(g.Entries, func(o *registry.Entry) bool { return o.Name == e.Name })
	return append(out, fmt.Sprintf("in discovery its group is %d of %d (priority %d), and its version %d of %d (versionPriority %d)",
		at+1, len(groups), g.Priority, version+1, len(g.Entries), e.Object.Spec.VersionPriority))
}

func leads(d *proxy.Decision) string {
	switch d.Action {
	case proxy.ToLocal:
		return "it is forwarded to the local apiserver, which authorizes it"
	case proxy.ToRemote:
		return fmt.Sprintf("it is authorized here, and forwarded to one of %d endpoints as %s", len(d.Entry.Endpoints), d.Entry.Backend.ServerName)
	case proxy.ToDocument:
		return "Fairlead answers it with a document merged from the local apiserver's and the backends'"
	case proxy.ToPage:
		return "Fairlead serves it itself"
	case proxy.ToHealth:
		return "Fairlead answers for its own readiness first, then the local apiserver"
	}
	return "Fairlead refuses it"
}

func identity(d *proxy.Decision, u user.Info) *answer.Identity {
	if d.Action != proxy.ToLocal && d.Action != proxy.ToRemote {
		return nil
	}
	id := &answer.Identity{User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra()}
	for _, f := range d.Set {
		if strings.HasPrefix(f.Name, "x-remote-") {
			id.Headers = append(id.Headers, f.Name+": "+f.Value)
		}
	}
	id.How = "asserted in these headers under the proxy client certificate; a token stays here"
	if d.Action == proxy.ToLocal {
		id.How = "a client certificate's user is asserted in these headers under the proxy client certificate; a token is passed on as it is, without them"
	}
	return id
}

func timeout(d *proxy.Decision) string {
	switch {
	case d.Action == proxy.ToLocal:
		return "none of ours: the local apiserver's own"
	case d.Action != proxy.ToRemote:
		return ""
	case d.LongRunning:
		return "long-running: none"
	case !d.Request.IsResource:
		return "discovery: " + d.Timeout.String()
	}
	return "request: " + d.Timeout.String()
}
