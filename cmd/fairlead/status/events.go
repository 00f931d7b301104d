package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// EventsConfig is what Events need. Table, Events, Leases and Identity must be set.
type EventsConfig struct {
	// Table returns the current table.
	Table func() *registry.Table
	// Events records them; it needs the verbs create and patch on events in namespace default,
	// which is where Events of cluster-scoped objects are.
	Events typedv1.EventsGetter
	// Leases elects the one who records; it needs the verbs get, create and update on leases.
	Leases coordinationv1.LeasesGetter
	// Identity names this replica in the Lease. No two replicas may have the same.
	Identity string
	// Faults says by name what else is wrong with an APIService, such as an unreadable bundle. Nil:
	// nothing.
	Faults func() map[string]string
	// Logger gets changes of the leader. Nil discards.
	Logger *slog.Logger
	// Metrics takes fairlead_event_total. Nil: unregistered.
	Metrics prometheus.Registerer
}

// Events reports changed verdicts as Events on the APIServices, while this replica leads.
//
// client-go's recorder merges similar Events, drops those that one object repeats too often (25 at
// once of each type, then one in five minutes), and queues at most a thousand for the apiserver.
type Events struct {
	config  EventsConfig
	log     *slog.Logger
	emitted *prometheus.CounterVec // :: type
	// table is of config.Table; tests have tables of their own.
	table func() table
}

// NewEvents makes Events. It does nothing until Run.
func NewEvents(c EventsConfig) (*Events, error) {
	if c.Table == nil || c.Events == nil || c.Leases == nil || c.Identity == "" {
		return nil, errors.New("configuring events: Table, Events, Leases and Identity must be set")
	}
	if c.Faults == nil {
		c.Faults = func() map[string]string { return nil }
	}
	e := &Events{config: c, log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler)), table: func() table { return c.Table() }, emitted: metric.Counter("fairlead_event_total",
		"Events told of APIServices, by type (Normal, Warning), before those that are alike are made one.", "type", corev1.EventTypeNormal, corev1.EventTypeWarning)}
	return e, metric.Register(c.Metrics, "events", e.emitted)
}

// eventsLease elects the one who records.
const eventsLease = "fairlead-events"

// Run takes part in the election until ctx ends, and reports changes while it leads.
func (e *Events) Run(ctx context.Context) error {
	el := election{leases: e.config.Leases, lease: eventsLease, identity: e.config.Identity, turn: make(chan struct{}, 1)}
	return el.run(ctx, func(ctx context.Context) {
		e.log.Info("telling of verdicts by events", "lease", eventsLease)
		defer e.log.Info("no longer telling of verdicts by events", "lease", eventsLease)
		broadcaster := record.NewBroadcaster(record.WithContext(ctx))
		broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: e.config.Events.Events("")})
		defer broadcaster.Shutdown()
		host := corev1.EventSource{Component: "fairlead", Host: e.config.Identity}
		e.tell(ctx, broadcaster.NewRecorder(runtime.NewScheme(), host))
	})
}

// faultsEvery is how often Faults is called: it changes without the table, and nobody waits for it.
const faultsEvery = 5 * time.Second

// told is what was last reported of an APIService.
type told struct {
	entry *registry.Entry
	fault string
}

// tell reports every change until ctx ends. The previous leader has reported what was so before; a
// first verdict is reported only if it is bad.
func (e *Events) tell(ctx context.Context, to record.EventRecorder) {
	known := map[string]*told{}
	wake := time.NewTimer(faultsEvery)
	defer wake.Stop()
	var due time.Time // to ask for faults
	for _, changes := range latest.Changes(ctx, e.table, wake.C) {
		for _, c := range changes {
			if c.New == nil || c.New.Local() {
				delete(known, c.Key())
				continue
			}
			last := known[c.New.Name]
			switch {
			case last == nil && due.IsZero():
				last = &told{entry: c.New}
			case last == nil:
				last = &told{entry: &registry.Entry{}}
			}
			e.compare(to, last.entry.Verdict, c.New)
			last.entry, known[c.New.Name] = c.New, last
		}
		if now := time.Now(); !now.Before(due) {
			e.blame(to, known, due.IsZero())
			due = now.Add(faultsEvery)
			wake.Reset(faultsEvery)
		}
	}
}

// blame reports new faults, unless they are old to whoever has led before.
func (e *Events) blame(to record.EventRecorder, known map[string]*told, before bool) {
	faults := e.config.Faults()
	for name, last := range known {
		if fault := faults[name]; fault != last.fault {
			if last.fault = fault; fault != "" && !before {
				e.emit(to, last.entry, corev1.EventTypeWarning, "Faulty", fault)
			}
		}
	}
}

// compare reports how a verdict differs from what was last reported.
func (e *Events) compare(to record.EventRecorder, last registry.Verdict, entry *registry.Entry) {
	switch v := entry.Verdict; {
	case v.Status == last.Status && v.Reason == last.Reason:
	case v.Status == corev1.ConditionFalse:
		e.emit(to, entry, corev1.EventTypeWarning, v.Reason, "requests are answered with 503: "+v.Message)
	case v.Status == corev1.ConditionTrue && last.Status == corev1.ConditionFalse:
		e.emit(to, entry, corev1.EventTypeNormal, "Available", fmt.Sprintf("requests are forwarded again, after %s of %s", time.Since(last.Since).Round(time.Second), last.Reason))
	}
}

// maxMessage is what the apiserver takes of an Event's message.
const maxMessage = 1024

func (e *Events) emit(to record.EventRecorder, entry *registry.Entry, kind, reason, message string) {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	e.emitted.WithLabelValues(kind).Inc()
	to.Event(&corev1.ObjectReference{Kind: "APIService", APIVersion: "apiregistration.k8s.io/v1", Name: entry.Name, UID: entry.Object.UID}, kind, reason, message)
}
