package audit

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Request describes a request after its decision.
type Request struct {
	// Attributes are what is asked for and the caller, also with impersonation. No user means that
	// it is not known here.
	Attributes authorizer.AttributesRecord
	// ID is the request's Audit-ID.
	ID string
	// Path and RawQuery are as received; Open masks secrets of the query.
	Path, RawQuery string
	// UserAgent is the client's. It may be empty.
	UserAgent string
	// SourceIPs are the addresses of the request's hops, the nearest last.
	SourceIPs []string
	// Received is when the request's head arrived.
	Received time.Time
	// LongRunning requests have a stage for the start of the response.
	LongRunning bool
}

// Event is the record of one request. It is used by one goroutine at a time.
type Event struct {
	log         *Log
	ev          auditinternal.Event
	cfg         audit.RequestAuditConfig
	longRunning bool
	started     bool
	bodies      captured
}

// maxAgent limits the User-Agent, like kube-apiserver.
const maxAgent = 1024

// Open starts the record of a request. Nil means that the policy leaves it out.
func (l *Log) Open(r *Request) *Event {
	cfg := l.cfg.Policy.EvaluatePolicyRule(&r.Attributes)
	if cfg.Level == auditinternal.LevelNone {
		return nil
	}
	a := &r.Attributes
	e := &Event{log: l, cfg: cfg, longRunning: r.LongRunning, ev: auditinternal.Event{
		Level: cfg.Level, AuditID: types.UID(r.ID), RequestURI: r.Path, Verb: a.Verb, UserAgent: r.UserAgent, SourceIPs: r.SourceIPs,
		RequestReceivedTimestamp: metav1.NewMicroTime(r.Received),
	}}
	if r.RawQuery != "" {
		e.ev.RequestURI += "?" + Mask(r.RawQuery)
	}
	if len(r.UserAgent) > maxAgent {
		e.ev.UserAgent = r.UserAgent[:maxAgent] + "...TRUNCATED"
	}
	if a.User != nil {
		e.ev.User = describe(a.User)
	}
	if a.ResourceRequest {
		e.ev.ObjectRef = &auditinternal.ObjectReference{
			Namespace: a.Namespace, Name: a.Name, Resource: a.Resource, Subresource: a.Subresource, APIGroup: a.APIGroup, APIVersion: a.APIVersion,
		}
	}
	return e
}

func describe(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	if extra := u.GetExtra(); len(extra) > 0 {
		info.Extra = make(map[string]authenticationv1.ExtraValue, len(extra))
		for k, v := range extra {
			info.Extra[k] = v
		}
	}
	return info
}

// Annotate adds an annotation to later stages.
func (e *Event) Annotate(key, value string) {
	if e.ev.Annotations == nil {
		e.ev.Annotations = map[string]string{}
	}
	e.ev.Annotations[key] = value
}

// Received emits the stage RequestReceived.
func (e *Event) Received() { e.stage(auditinternal.StageRequestReceived) }

// Refused emits the only stage of a request without a user: ResponseStarted, as kube-apiserver.
func (e *Event) Refused(code int, message string) {
	e.status(code, message)
	e.stage(auditinternal.StageResponseStarted)
}

// Started emits the stage ResponseStarted of a long-running request; others do not have it.
func (e *Event) Started(code int) {
	if !e.longRunning || e.started {
		return
	}
	e.started = true
	e.status(code, "")
	e.stage(auditinternal.StageResponseStarted)
}

// Impersonated records the effective user of an impersonating caller.
func (e *Event) Impersonated(as user.Info) {
	info := describe(as)
	e.ev.ImpersonatedUser = &info
}

// Completed emits the stage ResponseComplete. The message is empty for an ordinary end.
func (e *Event) Completed(code int, message string) {
	e.Started(code)
	e.status(code, message)
	e.bodies.into(&e.ev, e.cfg.OmitManagedFields, e.Annotate) //fairlead:boundary those with bodies end elsewhere
	e.stage(auditinternal.StageResponseComplete)
}

// Panicked emits the stage Panic.
func (e *Event) Panicked() {
	e.bodies.request.end()
	e.bodies.response.end()
	e.status(http.StatusInternalServerError, "the request's handler panicked")
	e.stage(auditinternal.StagePanic)
}

func (e *Event) status(code int, message string) {
	s := &metav1.Status{Code: int32(code), Message: message} //nolint:gosec // an HTTP status
	if code >= http.StatusBadRequest {
		s.Status = metav1.StatusFailure
	}
	e.ev.ResponseStatus = s
}

func (e *Event) stage(stage auditinternal.Stage) {
	if slices.Contains(e.cfg.OmitStages, stage) {
		return
	}
	ev := e.ev
	ev.Stage, ev.StageTimestamp, ev.Annotations = stage, metav1.NewMicroTime(time.Now()), maps.Clone(e.ev.Annotations)
	e.log.emit(&ev)
}

// Mask replaces the values of a raw query's parameters whose names suggest a secret, such as a
// token, a password or a signature. Everything else stays, byte for byte. kube-apiserver logs the
// whole query, but extension servers and proxied Services may have parameters of any meaning.
func Mask(rawQuery string) string {
	var b strings.Builder
	for rest := rawQuery; rest != ""; {
		// Some servers treat a semicolon like an ampersand.
		end := strings.IndexAny(rest, "&;")
		pair, separator := rest, ""
		if rest = ""; end >= 0 {
			pair, separator, rest = pair[:end], pair[end:end+1], pair[end+1:]
		}
		name, value, has := strings.Cut(pair, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil {
			plain = name
		}
		if has && value != "" && secret(strings.ToLower(plain)) {
			pair = name + "=MASKED"
		}
		b.WriteString(pair)
		b.WriteString(separator)
	}
	return b.String()
}

// secret reports whether a name in lower case suggests a secret. The names are those of Kubernetes,
// OAuth 2 and the signed URLs of object stores.
func secret(name string) bool {
	for _, word := range []string{"token", "passw", "secret", "credential", "authorization", "bearer", "signature", "apikey", "api_key", "api-key", "assertion", "jwt"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return name == "sig" || name == "code" || name == "key"
}
