package audit

import (
	"maps"
	"net/http"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Request is what is known of a request when it has been decided upon.
type Request struct {
	// Attributes are what is asked for, and by whom: the caller itself, not whom it impersonates. No user: the local apiserver finds out, or nobody did.
	Attributes authorizer.AttributesRecord
	// ID is the request's Audit-ID. Empty: one is made.
	ID string
	// Path and RawQuery are as received; secrets of the query are masked here.
	Path, RawQuery string
	// UserAgent is the client's word. Empty: it gave none.
	UserAgent string
	// SourceIPs is where the request came from, the nearest last.
	SourceIPs []string
	// Received is when its head had arrived.
	Received time.Time
	// LongRunning requests have a stage of their own for the beginning of the response.
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

// maxAgent is how much of a User-Agent is kept: as much as kube-apiserver keeps.
const maxAgent = 1024

// Open begins the record of a request. Nil: the policy leaves it out.
func (l *Log) Open(r *Request) *Event {
	cfg := l.cfg.Policy.EvaluatePolicyRule(&r.Attributes)
	if cfg.Level == auditinternal.LevelNone {
		return nil
	}
	a := &r.Attributes
	e := &Event{log: l, cfg: cfg, longRunning: r.LongRunning, ev: auditinternal.Event{
		Level: cfg.Level, AuditID: types.UID(r.ID), RequestURI: requestURI(r.Path, r.RawQuery), Verb: a.Verb, UserAgent: cut(r.UserAgent), SourceIPs: r.SourceIPs,
		RequestReceivedTimestamp: metav1.NewMicroTime(r.Received),
	}}
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

func cut(agent string) string {
	if len(agent) > maxAgent {
		return agent[:maxAgent] + "...TRUNCATED"
	}
	return agent
}

// Annotate adds a fact to what is emitted from now on.
func (e *Event) Annotate(key, value string) {
	if e.ev.Annotations == nil {
		e.ev.Annotations = map[string]string{}
	}
	e.ev.Annotations[key] = value
}

// Received emits the stage RequestReceived.
func (e *Event) Received() { e.stage(auditinternal.StageRequestReceived) }

// Refused emits all that there is of a request whose caller could not be authenticated, as kube-apiserver has it: the stage ResponseStarted.
func (e *Event) Refused(code int, message string) {
	e.status(code, message)
	e.stage(auditinternal.StageResponseStarted)
}

// Started emits the stage ResponseStarted of a long-running request; others have none.
func (e *Event) Started(code int) {
	if !e.longRunning || e.started {
		return
	}
	e.started = true
	e.status(code, "")
	e.stage(auditinternal.StageResponseStarted)
}

// Impersonated notes as whom a caller was served that asked to be somebody else.
func (e *Event) Impersonated(as user.Info) {
	info := describe(as)
	e.ev.ImpersonatedUser = &info
}

// Completed emits the stage ResponseComplete. The message is for what is no ordinary end; most have none.
func (e *Event) Completed(code int, message string) {
	e.Started(code)
	e.status(code, message)
	e.bodies.into(&e.ev, e.cfg.OmitManagedFields, e.Annotate)
	e.stage(auditinternal.StageResponseComplete)
}

// Panicked emits the stage Panic.
func (e *Event) Panicked() {
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
