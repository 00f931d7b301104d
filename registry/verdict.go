package registry

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Reasons of a Verdict. All but the last four are kube-aggregator's, because conformance tests,
// dashboards and alerts compare them.
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

// Verdict says whether an APIService can be used, in the words of its Available condition. The zero
// Verdict means "not yet checked" (status Unknown, no reason), and requests are answered as if it
// were unavailable.
type Verdict struct {
	// Status is True, False or Unknown. Empty means Unknown: not yet checked.
	Status corev1.ConditionStatus
	// Reason is one of the Reason constants. Empty means not yet checked.
	Reason string
	// Message is for the operator: it may contain addresses and must not be sent to ordinary
	// clients.
	Message string
	// Since is when Status last changed. Zero means not yet checked.
	Since time.Time
}

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
	// Name is the APIService's, such as v1beta1.metrics.k8s.io.
	Name string
	// Backend is the Backend of the probed entry. A report is dropped if the entry has another
	// Backend by now: its result would be about the old one.
	Backend *Backend
	// Address is the Endpoint's.
	Address string
	// Health is Healthy or Unhealthy.
	Health Health
	// Reason says why the endpoint is unhealthy: ReasonFailedDiscoveryCheck or
	// ReasonInvalidCABundle. Empty when Healthy.
	Reason string
	// Message is the cause, for the operator. Empty when Healthy.
	Message string
	// Slow says that the endpoint should get only a trickle of requests: its latency is far above
	// its peers' median.
	Slow bool
}
