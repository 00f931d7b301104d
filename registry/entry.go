package registry

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// Entry is one APIService in the table. Unchanged, it is the same pointer in the next: a key for what readers derive.
type Entry struct {
	Name         string              // the object's, version.group; "v1." for the core group
	GroupVersion schema.GroupVersion // the one that the entry claims
	// Object is the APIService as it was read, without managed fields and, in kubernetes mode, status (see Verdict). It
	// is read-only. A change of the status or of unused metadata (resourceVersion) makes no new Entry: they may be old.
	Object  *apiregistrationv1.APIService
	Backend *Backend // where requests go. Nil means Local: the local apiserver serves this group-version
	// Endpoints are the addresses that may be dialled: ready before terminating, then by address.
	// Without endpoint routing, the ClusterIP. Empty means Local, or that the Verdict says why.
	Endpoints []Endpoint
	Settings  Settings // those from the object's annotations, with defaults filled in
	// Front is the Service to which the cluster's own aggregator sends the APIService, Fairlead's, as
	// <namespace>/<name>:<port> (annotation service), and FrontSays that aggregator's verdict. Empty means none.
	Front, FrontSays string
	// Problems are faults that do not keep the object out of the table: bad annotations, a shadowed definition.
	Problems []string
	Verdict  Verdict  // says whether requests may be sent
	Further  []*Entry // further backends, by the policy, in its order. See For
	// StandIn is the one of Further that answers for Backend, which is, or just was, unavailable. Nil means none.
	StandIn *Entry
	Rule    *policy.Rule // that of one of another entry's Further. Nil means that the entry is an APIService
	// Hidden is the place of the policy's route that answers the group-version with 404, and keeps it out of documents.
	Hidden string

	kept    *kept
	outages [len(unavailableReasons)]uint64 // count by unavailableReasons how often it became unavailable
}

// Key returns the name, for latest.Diff.
func (e *Entry) Key() string { return e.Name }

// Path returns the path of the group-version's discovery document, which is above all its objects.
func (e *Entry) Path() string {
	if e.GroupVersion.Group == "" {
		return "/api/" + e.GroupVersion.Version
	}
	return "/apis/" + e.GroupVersion.String()
}

// APIService returns the name of the APIService that it is, or of which it is a further backend.
func (e *Entry) APIService() string { return mainOf(e.Name) }

// Local reports whether the local apiserver serves this group-version.
func (e *Entry) Local() bool { return e.Backend == nil }

// Moved reports whether the group-version has another server: it is new, gone (e is nil), became Local or remote.
func (e *Entry) Moved(before *Entry) bool {
	return e == nil || before == nil || e.Local() != before.Local()
}

// Servers returns Further and the entry itself: of what two have in a document, the first has it.
func (e *Entry) Servers() []*Entry { return append(slices.Clip(e.Further), e) }

// Kind returns local, remote, or refused. Refused means a remote that claims a protected group.
func (e *Entry) Kind() string {
	switch {
	case e.Local():
		return "local"
	case e.Verdict.Reason == ReasonProtectedGroup:
		return "refused"
	}
	return "remote"
}

// Backend is the remote side of an Entry: its name, trust and protocol, and everything else that makes its connections
// differ from others. It is comparable. Equal Backends are one pointer, in all entries of a table and from table to
// table, independently of endpoints and of the APIService that named it first: trust and connections are keyed by it.
type Backend struct {
	// Namespace and Service name the Service. Port is the APIService's (443 when unset).
	Namespace, Service string
	Port               int32
	// URLs are https://host:port, comma-separated, from the annotation url. Then Service is empty,
	// and Namespace is that of CAFrom. Empty means a Service.
	URLs string
	// ServerName is the TLS name to verify and to send: <service>.<namespace>.svc, or the URL's host, unless an
	// annotation overrides it. For several URLs it is all hosts, comma-separated: a certificate is for one, see NameAt.
	ServerName  string
	CABundle    string        // the inline PEM bundle. Empty means CAFrom, or else the system's roots
	CAFrom      string        // the annotation ca-from, which Reference reads. Empty means CABundle
	Insecure    bool          // turns verification off (insecureSkipTLSVerify)
	HTTP1       bool          // forces HTTP/1.1 (annotation fairlead.dev/http1)
	PingTimeout time.Duration // that of the Settings. It is fixed for the lifetime of a connection
	// Owner is the APIService that alone uses this Backend, because it trusts more than CABundle says (a recently
	// replaced CA, or those of a ConfigMap), or its URLs cannot be used. Empty: all with an equal Backend share it.
	Owner string
}

// String returns <namespace>/<service>:<port>, or the URLs.
func (b *Backend) String() string {
	return cmp.Or(b.URLs, b.Namespace+"/"+net.JoinHostPort(b.Service, strconv.Itoa(int(b.Port))))
}

// trustBundle stands in CAFrom for a ConfigMap's name, and says that a ClusterTrustBundle's follows.
const trustBundle = "clustertrustbundle"

func inTrustBundle(caFrom string) bool { return strings.HasPrefix(caFrom, trustBundle+"/") }

// Reference returns the object that CAFrom names and the key of its data: a ConfigMap or, without a
// namespace, a ClusterTrustBundle, whose only key is its name.
func (b *Backend) Reference() (ref types.NamespacedName, key string) {
	name, key, _ := strings.Cut(b.CAFrom, "/")
	if name == trustBundle {
		return types.NamespacedName{Name: key}, key
	}
	return types.NamespacedName{Namespace: b.Namespace, Name: name}, key
}

// NameAt returns the TLS name to send to an address.
func (b *Backend) NameAt(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil && strings.Contains(b.ServerName, ",") {
		return host
	}
	return b.ServerName
}

// Endpoint is one address of an Entry's Backend.
type Endpoint struct {
	Address     string    // the host:port to dial
	Terminating bool      // used only when no other is left
	Far         bool      // for other zones than this replica's (EndpointSlice hints): used while no other is healthy
	Health      Health    // the result of the probes
	Slow        bool      // gets a trickle (1 %) of requests: its latency is far above the peers' median
	Hung        bool      // it accepts connections and does no TLS handshakes: its process does not run
	Gone        bool      // it answers, and has the group-version no longer (404)
	Reason      string    // why it is Unhealthy: ReasonFailedDiscoveryCheck or ReasonInvalidCABundle
	Message     string    // the cause when Unhealthy, for the operator
	Since       time.Time // when Health last changed. Zero means never
}

// Settings are those of an APIService's fairlead.dev/ annotations, with the flags' defaults (Options.Defaults).
type Settings struct {
	RequestTimeout time.Duration // bounds a request that is not long-running. Annotation request-timeout
	// MaxInFlight bounds requests in flight, MaxLongRunning watches and sessions; max-inflight, max-longrunning.
	MaxInFlight, MaxLongRunning int
	// LongRunningSubresources are treated like exec. Annotation long-running-subresources.
	LongRunningSubresources []string
	// CAOverlap is how long a replaced CA stays trusted; zero: not. Annotation ca-rotation-overlap.
	CAOverlap time.Duration
	// ProbeInterval is the time between probes of a healthy endpoint. Annotation probe-interval.
	ProbeInterval time.Duration
	// PingTimeout is the silence that closes an HTTP/2 connection, with a PING after a fifth. Annotation ping-timeout.
	PingTimeout time.Duration
	// Maintenance is the message of the 503 that all requests get. Empty means no maintenance. Annotation maintenance.
	Maintenance string
	// Owner is who is alerted when it fails: a label of metrics and alerts. Empty means unset. Annotation owner.
	Owner string
}

// Reasons of a Verdict. All but the last four are kube-aggregator's: tests, dashboards and alerts compare them.
const (
	ReasonLocal                = "Local"
	ReasonServiceNotFound      = "ServiceNotFound"
	ReasonServiceAccessError   = "ServiceAccessError"
	ReasonServicePortError     = "ServicePortError"
	ReasonEndpointsNotFound    = "EndpointsNotFound"
	ReasonEndpointsAccessError = "EndpointsAccessError"
	ReasonMissingEndpoints     = "MissingEndpoints"
	ReasonFailedDiscoveryCheck = "FailedDiscoveryCheck"
	ReasonPassed               = "Passed"
	ReasonInvalidCABundle      = "InvalidCABundle"
	ReasonMaintenance          = "Maintenance"
	ReasonProtectedGroup       = "ProtectedGroup"
	ReasonInvalidURL           = "InvalidURL"
)

// Verdict says whether an APIService can be used, in the words of its Available condition. The zero Verdict means "not
// yet checked" (status Unknown, no reason), and requests are answered as if it were unavailable.
type Verdict struct {
	// Status is True, False or Unknown. Empty means Unknown: not yet checked.
	Status corev1.ConditionStatus `json:"status"`
	Reason string                 `json:"reason,omitempty"` // one of the Reason constants. Empty means not yet checked
	// Message is for the operator: it may contain addresses and must not be sent to clients.
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"` // when Status last changed. Zero means not yet checked
}

// Shown returns Status in words: Unknown for none.
func (v Verdict) Shown() corev1.ConditionStatus { return cmp.Or(v.Status, corev1.ConditionUnknown) }

// Available reports whether requests may be sent.
func (v Verdict) Available() bool { return v.Status == corev1.ConditionTrue }

// Health is the result of probing one endpoint.
type Health uint8

// The states of an endpoint. Unprobed is the zero value: no probe has ended yet.
const (
	Unprobed Health = iota
	Healthy
	Unhealthy
)

// Report is the result of a probe of one endpoint for one APIService (Registry.Report).
type Report struct {
	Name     string    // the APIService's, such as v1beta1.metrics.k8s.io
	Backend  *Backend  // that of the probed entry. If the entry has another one by now, the report is dropped
	Endpoint           // what was found of the endpoint at the Address
	Began    time.Time // when the probe began that proves it: nothing later is said. Zero means unknown
	HTTP2    bool      // says that a Healthy endpoint has answered over HTTP/2
}
