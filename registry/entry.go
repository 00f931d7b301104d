package registry

import (
	"cmp"
	"net"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Entry is one APIService as the table sees it. An unchanged Entry is the same pointer from table to table, so a consumer may key what it
// derives by the pointer.
type Entry struct {
	// Name is the object's name, version.group; "v1." for the core group.
	Name string
	// GroupVersion is what the entry claims.
	GroupVersion schema.GroupVersion
	// Object is the APIService as it was read, without managed fields; in kubernetes mode without status (see Verdict). Read-only. A change of
	// nothing but metadata that no one here looks at (resourceVersion, status) makes no new Entry, so they may be older than the object's.
	Object *apiregistrationv1.APIService
	// Backend is where requests go. Nil: Local, the local apiserver serves this group-version.
	Backend *Backend
	// Endpoints are the addresses that may be dialled, ready ones before terminating ones, then by address. With endpoint routing off: the one
	// ClusterIP. Empty: Local, or the Verdict says why there is none.
	Endpoints []Endpoint
	// Policy is what the object's annotations ask for, defaults filled in.
	Policy Policy
	// Problems are the faults of the object that did not keep it out of the table: bad annotations, a shadowed CRD, a protected group.
	Problems []string
	// Verdict is whether requests may be sent.
	Verdict Verdict

	from *origin
}

// Key is the name, for latest.Diff.
func (e *Entry) Key() string { return e.Name }

// Local reports whether the local apiserver serves this group-version.
func (e *Entry) Local() bool { return e.Backend == nil }

// Kind is local, remote, or refused: a remote that claims a protected group.
func (e *Entry) Kind() string {
	switch {
	case e.Local():
		return "local"
	case e.Verdict.Reason == ReasonProtectedGroup:
		return "refused"
	}
	return "remote"
}

// Backend is the remote side of an Entry: what it is called, whom to trust there and what else makes a connection what it is. It is comparable,
// and equal ones are the same pointer, in all entries of a table and from table to table, whatever becomes of endpoints and of the APIService
// that brought it first. So trust and connections may be keyed by it.
type Backend struct {
	// Namespace and Service name the Service, Port is the APIService's (443 when unset).
	Namespace, Service string
	Port               int32
	// URLs are https://host:port, comma-separated, of a backend that an annotation names. Then there is no Service, and Namespace is that of CAFrom. Empty: a Service.
	URLs string
	// ServerName is the TLS name to verify and to send: <service>.<namespace>.svc, or the host of the URL, unless the annotation overrides it. URLs with several
	// hosts have all of them, comma-separated: one is verified, and NameAt is sent.
	ServerName string
	// CABundle is the inline PEM bundle. Empty: see CAFrom; both empty: the system's roots.
	CABundle string
	// CAFrom is "<configmap>/<key>" in Namespace, from the annotation. Empty: CABundle.
	CAFrom string
	// Insecure turns verification off (insecureSkipTLSVerify).
	Insecure bool
	// HTTP1 says that the backend must be spoken to in HTTP/1.1 (annotation fairlead.dev/http1).
	HTTP1 bool
	// PingTimeout is the Policy's, which a connection keeps for as long as it lasts.
	PingTimeout time.Duration
	// Owner is the APIService that has this Backend for itself, because more is trusted there than CABundle says (a CA that was replaced lately, or
	// what a ConfigMap holds), or because its URLs cannot be used. Empty: whoever names the same has it.
	Owner string
}

// String is what people call a backend: <namespace>/<service>:<port>, or its URLs.
func (b *Backend) String() string {
	return cmp.Or(b.URLs, b.Namespace+"/"+net.JoinHostPort(b.Service, strconv.Itoa(int(b.Port))))
}

// NameAt is the TLS name to send to an address.
func (b *Backend) NameAt(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil && strings.Contains(b.ServerName, ",") {
		return host
	}
	return b.ServerName
}

// Endpoint is one address of an Entry's Backend.
type Endpoint struct {
	// Address is host:port, as it is dialled.
	Address string
	// Terminating endpoints are used only when no other is left.
	Terminating bool
	// Health is what probing found.
	Health Health
	// Slow endpoints get a trickle (1 %) of requests: their latency is far above their peers' median.
	Slow bool
	// Reason is why it is Unhealthy: ReasonFailedDiscoveryCheck or ReasonInvalidCABundle. Else empty.
	Reason string
	// Message is the cause when Unhealthy, for the operator.
	Message string
	// Since is when Health last changed. Zero: never.
	Since time.Time
}

// Policy is what an APIService's fairlead.dev/ annotations ask for, with the defaults of the flags filled in (Defaults in Config).
type Policy struct {
	// RequestTimeout bounds a request that is not long-running. Annotation request-timeout.
	RequestTimeout time.Duration
	// MaxInFlight bounds requests in flight, MaxLongRunning watches and upgraded sessions. Annotations max-inflight, max-longrunning.
	MaxInFlight, MaxLongRunning int
	// LongRunningSubresources are treated like exec and log. Annotation long-running-subresources, comma separated.
	LongRunningSubresources []string
	// CAOverlap is for how long a replaced CA stays trusted. Zero: not at all. Annotation ca-rotation-overlap.
	CAOverlap time.Duration
	// ProbeInterval is the time between probes of a healthy endpoint. Annotation probe-interval.
	ProbeInterval time.Duration
	// PingTimeout is how long a silent HTTP/2 connection may stay unanswered before it is dead. Annotation ping-timeout.
	PingTimeout time.Duration
	// Maintenance is a message that is answered with 503 to all requests. Empty: not in maintenance. Annotation maintenance.
	Maintenance string
}
