package discovery

import (
	"cmp"
	"slices"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/poll"
)

// Status is how current one remote APIService's part of the documents is.
type Status struct {
	// Name is the APIService's.
	Name string `json:"-"`
	// Stale says that clients are told to ignore what is listed.
	Stale bool `json:"stale"`
	// Reason is why the backend's last answer could not be used: a poll.Reason, "unavailable" when its verdict says so, or "pending" when it has not been asked yet. Empty: it could.
	Reason string `json:"reason,omitempty"`
	// Message is the cause, for the operator: it may hold addresses.
	Message string `json:"message,omitempty"`
	// Confirmed is when the backend last said what is listed. Zero: never.
	Confirmed time.Time `json:"confirmed,omitzero"`
	// Resources is how many resources are listed.
	Resources int `json:"resources"`
}

// row is one remote APIService as it was rendered, and where to find what its backend has said since: being confirmed again is no reason to render anew.
type row struct {
	entry     *registry.Entry
	source    *source
	stale     bool
	resources int
}

// Status tells of every remote APIService, by name.
func (d *Discovery) Status() []Status {
	docs := d.documents.Load()
	if docs == nil {
		return nil
	}
	out := make([]Status, len(docs.rows))
	for i := range docs.rows {
		out[i] = docs.rows[i].status()
	}
	return out
}

// rows are the remote APIServices below /apis, by name.
func (m *merge) rows() []row {
	var out []row
	for _, e := range m.table.Entries() {
		if e.Local() || e.GroupVersion.Group == "" {
			continue
		}
		listed := m.version(e)
		out = append(out, row{
			entry: e, source: m.sources[e.Name], stale: listed.Freshness == apidiscoveryv2.DiscoveryFreshnessStale, resources: len(listed.Resources),
		})
	}
	slices.SortFunc(out, func(a, b row) int { return cmp.Compare(a.entry.Name, b.entry.Name) })
	return out
}

func (r *row) status() Status {
	s := Status{Name: r.entry.Name, Stale: r.stale, Resources: r.resources}
	var v *version
	if r.source != nil {
		v = r.source.state.Load().versions[r.entry.GroupVersion]
	}
	if v != nil {
		s.Confirmed = v.confirmed
	}
	switch {
	case r.entry.Verdict.Status == corev1.ConditionFalse:
		s.Reason, s.Message = "unavailable", r.entry.Verdict.Reason
	case v == nil:
		s.Reason = "pending"
	case v.err != nil:
		s.Reason, s.Message = string(poll.ReasonOf(v.err)), v.err.Error()
	}
	return s
}
