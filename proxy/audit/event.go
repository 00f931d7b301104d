package audit

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/internal/bound"
)

// Request describes a request after its decision.
type Request struct {
	// Attributes are what is asked for and the caller, also with impersonation. No user means that it is unknown here.
	Attributes     authorizer.AttributesRecord
	ID             string       // the Audit-ID
	Path, RawQuery string       // as received; Open masks secrets of the query
	UserAgent      string       // the client's. It may be empty
	SourceIPs      []string     // the addresses of the request's hops, the nearest last
	From           bound.Source // who sent the request, for bounds
	Received       time.Time    // when the request's head arrived
	LongRunning    bool         // such requests have a stage for the start of the response
}

// Event is the record of one request. It is used by one goroutine at a time.
type Event struct {
	log               *Log
	from              bound.Source
	ev                auditinternal.Event
	query             int // bytes of the raw query, which names in ev keep in memory: they are parts of the target
	cfg               audit.RequestAuditConfig
	longRunning       bool
	started           bool
	request, response copied // transports may still read the request's body after the response, so each has a lock
}

const maxAgent = 1024 // limits the User-Agent, like kube-apiserver

// Open starts the record of a request. Nil means that the policy leaves it out.
func (l *Log) Open(r *Request) *Event {
	cfg := l.cfg.Policy.EvaluatePolicyRule(&r.Attributes)
	if cfg.Level == auditinternal.LevelNone {
		return nil
	}
	a := &r.Attributes
	e := &Event{log: l, from: r.From, cfg: cfg, longRunning: r.LongRunning, ev: auditinternal.Event{
		Level: cfg.Level, AuditID: types.UID(r.ID), RequestURI: r.Path, Verb: a.Verb, UserAgent: r.UserAgent,
		SourceIPs: r.SourceIPs, RequestReceivedTimestamp: metav1.NewMicroTime(r.Received),
		Annotations: map[string]string{},
	}}
	if r.RawQuery != "" {
		e.ev.RequestURI += "?" + Mask(r.RawQuery)
		e.query = len(r.RawQuery)
	}
	if len(r.UserAgent) > maxAgent {
		e.ev.UserAgent = r.UserAgent[:maxAgent] + "...TRUNCATED"
	}
	if a.User != nil {
		e.ev.User = describe(a.User)
	}
	if a.ResourceRequest {
		e.ev.ObjectRef = &auditinternal.ObjectReference{
			APIGroup: a.APIGroup, APIVersion: a.APIVersion, Resource: a.Resource, Subresource: a.Subresource,
			Namespace: a.Namespace, Name: a.Name,
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
func (e *Event) Annotate(key, value string) { e.ev.Annotations[key] = value }

// Received emits the stage RequestReceived.
func (e *Event) Received() { e.stage(auditinternal.StageRequestReceived) }

// Refused emits the only stage of a request without a user: ResponseStarted, as kube-apiserver.
func (e *Event) Refused(code int, message string) {
	e.status(code, message, metav1.StatusReasonUnauthorized)
	e.stage(auditinternal.StageResponseStarted)
}

// Started emits the stage ResponseStarted of a long-running request; others do not have it, nor has a nil Event.
func (e *Event) Started(code int) {
	if e == nil || !e.longRunning || e.started {
		return
	}
	e.started = true
	e.status(code, "", "")
	e.stage(auditinternal.StageResponseStarted)
}

// Impersonated records the effective user of an impersonating caller.
func (e *Event) Impersonated(as user.Info) { e.ev.ImpersonatedUser = new(describe(as)) }

// Completed emits the stage ResponseComplete. The message is empty for an ordinary end, the reason for others' answers.
func (e *Event) Completed(code int, message string, reason metav1.StatusReason) {
	e.Started(code)
	e.status(code, message, reason)
	// The types of extension servers are unknown here, so only JSON can be read. Their clients rarely use anything
	// else, because protobuf exists only for built-in types and generated clients.
	e.ev.RequestObject = e.object(&e.request, annotateRequest)    //fairlead:boundary those with bodies end elsewhere
	e.ev.ResponseObject = e.object(&e.response, annotateResponse) //fairlead:boundary as above
	e.stage(auditinternal.StageResponseComplete)
}

// Panicked emits the stage Panic.
func (e *Event) Panicked() {
	e.request.end()
	e.response.end()
	e.status(http.StatusInternalServerError, "the request's handler panicked", metav1.StatusReasonInternalError)
	e.stage(auditinternal.StagePanic)
}

func (e *Event) status(code int, message string, reason metav1.StatusReason) {
	s := &metav1.Status{Code: int32(code), Message: message, Reason: reason} //nolint:gosec // an HTTP status
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
	if ev.StageTimestamp = ev.RequestReceivedTimestamp; stage != auditinternal.StageRequestReceived {
		ev.StageTimestamp = metav1.NewMicroTime(time.Now())
	}
	ev.Stage, ev.Annotations = stage, maps.Clone(e.ev.Annotations)
	e.log.emit(&ev, e.query, e.from)
}

// maxBody limits the recorded bodies: nearly every object below etcd's 1.5 MiB fits, and no list of
// thousands. A body is recorded whole or not at all.
const maxBody = 1 << 20

// maxCaptured limits the bodies of requests under way that are recorded: a slow upload is held for as long as it lasts.
const maxCaptured = 64 << 20

type copied struct {
	mu    sync.Mutex // guards data, place and why
	data  []byte
	place bound.Place // for the capacity of data
	why   string      // nothing more is recorded; empty means that it is

	wanted      bool
	of          *bound.Places
	from        bound.Source
	contentType string
	encoding    string
}

func (c *copied) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch n := len(c.data) + len(p); {
	case c.why != "":
	case n > maxBody:
		c.endLocked(tooLong)
	case n > cap(c.data) && !c.growLocked(n):
		c.endLocked("not recorded: too many bodies are being recorded")
	default:
		c.data = append(c.data, p...)
	}
	return len(p), nil
}

// growLocked makes room for n bytes, if there is a place for them.
func (c *copied) growLocked(n int) bool {
	n = min(max(2*n, 4<<10), maxBody)
	place, ok := c.of.Take(c.from, int64(n), maxCaptured)
	if !ok {
		return false
	}
	c.place.Leave()
	c.place, c.data = place, append(make([]byte, 0, n), c.data...)
	return true
}

func (c *copied) endLocked(why string) {
	c.place.Leave()
	c.data, c.why = nil, why
}

// end ends the recording. It returns what was recorded, or why that is nothing.
func (c *copied) end() (data []byte, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, why = c.data, c.why
	c.endLocked("not recorded: the request has ended")
	return data, why
}

// Bodies reports whether the policy wants the bodies. Watches' and sessions' are never recorded.
func (e *Event) Bodies() bool { return !e.longRunning && auditinternal.LevelMetadata.Less(e.cfg.Level) }

// Request returns body, recording what is read from it if the policy wants that.
func (e *Event) Request(body io.ReadCloser, contentType string) io.ReadCloser {
	if !e.Bodies() || body == nil {
		return body
	}
	return struct {
		io.Reader
		io.Closer
	}{io.TeeReader(body, e.want(&e.request, contentType, "")), body}
}

// ResponseHead notes the type of a response's body.
func (e *Event) ResponseHead(contentType, encoding string) {
	if e.Bodies() && auditinternal.LevelRequest.Less(e.cfg.Level) {
		e.want(&e.response, contentType, encoding)
	}
}

func (e *Event) want(c *copied, contentType, encoding string) *copied {
	c.wanted, c.of, c.from = true, &e.log.captured, e.from
	c.contentType, c.encoding = contentType, encoding
	return c
}

// Response records a piece of a response, if the policy wants it.
func (e *Event) Response(p []byte) {
	if e.response.wanted {
		_, _ = e.response.Write(p)
	}
}

// Annotations that say why an event has no body.
const (
	annotateRequest  = "fairlead.dev/request-body"
	annotateResponse = "fairlead.dev/response-body"
	tooLong          = "not recorded: longer than 1 MiB"
)

// withoutBodies returns an event whose line was too long to be written. No body keeps a request out of the log.
func withoutBodies(ev *auditinternal.Event) *auditinternal.Event {
	short := Event{ev: *ev}
	short.ev.RequestObject, short.ev.ResponseObject, short.ev.Annotations = nil, nil, maps.Clone(ev.Annotations)
	for key, object := range map[string]*runtime.Unknown{
		annotateRequest: ev.RequestObject, annotateResponse: ev.ResponseObject,
	} {
		if object != nil {
			short.Annotate(key, "not recorded: the line could not be written")
		}
	}
	return &short.ev
}

// object returns a recorded body in the form of events. If there is none, an annotation says why.
func (e *Event) object(c *copied, annotation string) *runtime.Unknown {
	if !c.wanted {
		return nil
	}
	data, why := c.end()
	if c.encoding == "gzip" {
		data = inflate(data)
	}
	switch { // whatever its type: that of an apply is called YAML, but clients write JSON
	case len(data) == 0:
	case len(data) > maxBody:
		why = tooLong
	case !json.Valid(data):
		why = "not recorded: not JSON"
	default:
		whole := !strings.Contains(c.contentType, "patch") // a patch is recorded as it is, as in kube-apiserver
		if e.cfg.OmitManagedFields && whole && bytes.Contains(data, []byte("managedFields")) {
			e.log.reading.Lock()
			data = withoutManagedFields(data)
			e.log.reading.Unlock()
		}
		return &runtime.Unknown{Raw: data, ContentType: runtime.ContentTypeJSON}
	}
	if why != "" {
		e.Annotate(annotation, why)
	}
	return nil
}

// inflate decompresses a body up to maxBody and a byte. What is no gzip stays: it is no JSON.
func inflate(data []byte) []byte {
	if r, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
		if plain, err := io.ReadAll(io.LimitReader(r, maxBody+1)); err == nil && len(plain) > 0 {
			return plain
		}
	}
	return data
}

// withoutManagedFields removes metadata.managedFields from an object, a list's items, or a Table's objects.
func withoutManagedFields(data []byte) []byte {
	var o map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&o) != nil {
		return data // a list
	}
	items, _ := o["items"].([]any)
	rows, _ := o["rows"].([]any) // of a Table
	for _, row := range rows {
		r, _ := row.(map[string]any)
		items = append(items, r["object"])
	}
	for _, item := range append(items, o) {
		m, _ := item.(map[string]any)
		meta, _ := m["metadata"].(map[string]any)
		delete(meta, "managedFields")
	}
	if out, err := json.Marshal(o); err == nil {
		return out
	}
	return data
}
