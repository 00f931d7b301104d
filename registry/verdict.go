package registry

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Reasons of a Verdict. All but the last four are kube-aggregator's own, word for word: Conformance, dashboards and alerts compare them.
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

// Verdict says whether an APIService can be used, in the words of its Available condition. It is a value; the zero Verdict is "not yet
// checked" (status Unknown, no reason) and is answered like an unavailable one.
type Verdict struct {
	// Status is True, False or Unknown. Empty means Unknown: never checked.
	Status corev1.ConditionStatus
	// Reason is one of the Reason constants. Empty: never checked.
	Reason string
	// Message is for the operator: it may hold addresses and must not be sent to ordinary clients.
	Message string
	// Since is when Status last changed. Zero: never checked.
	Since time.Time
}

// Available reports whether requests may be sent.
func (v Verdict) Available() bool { return v.Status == corev1.ConditionTrue }

// Health is what probing has found out about one endpoint.
type Health uint8

// The states of an endpoint. Unprobed is the zero value: no probe has ended yet.
const (
	Unprobed Health = iota
	Healthy
	Unhealthy
)

// Report is what the prober tells the registry about one endpoint of one APIService (Registry.Report).
type Report struct {
	// Name is the APIService's, such as v1beta1.metrics.k8s.io.
	Name string
	// Backend is the Backend of the entry that was probed. A report whose Backend is no longer the entry's is dropped: its verdict is about
	// something that is gone.
	Backend *Backend
	// Address is the Endpoint's.
	Address string
	// Health is Healthy or Unhealthy.
	Health Health
	// Reason is why an unhealthy endpoint is unhealthy: ReasonFailedDiscoveryCheck or ReasonInvalidCABundle. Empty when Healthy.
	Reason string
	// Message is the cause, for the operator. Empty when Healthy.
	Message string
	// Slow asks that the endpoint gets no more than a trickle: its latency is far above its peers' median.
	Slow bool
}
