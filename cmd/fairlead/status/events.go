package status

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Events reports changed verdicts as Events on the APIServices, while this replica leads.
// client-go's recorder merges similar Events, drops those that one object repeats too often (25 at
// once of each type, then one in five minutes), and queues at most a thousand for the apiserver.
type Events struct {
	config  Config
	log     *slog.Logger
	emitted *prometheus.CounterVec // :: type
}

// NewEvents makes Events. It does nothing until Run.
func NewEvents(c Config) *Events {
	e := &Events{config: c, log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler)), emitted: metric.Counter("fairlead_event_total",
		"Events emitted for APIServices, by type (Normal, Warning), before similar ones are merged.", "type", corev1.EventTypeNormal, corev1.EventTypeWarning)}
	metric.Register(c.Metrics, e.emitted)
	return e
}

// Run takes part in the election until ctx ends, and reports changes while it leads.
func (e *Events) Run(ctx context.Context) error {
	const lease = "fairlead-events"
	return e.config.elect(ctx, lease, func(ctx context.Context) {
		e.log.Info("reporting verdicts as events", "lease", lease)
		defer e.log.Info("no longer reporting verdicts as events", "lease", lease)
		broadcaster := record.NewBroadcaster(record.WithContext(ctx))
		broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: e.config.Client.CoreV1().Events("")})
		defer broadcaster.Shutdown()
		host := corev1.EventSource{Component: "fairlead", Host: e.config.Identity}
		e.report(ctx, broadcaster.NewRecorder(runtime.NewScheme(), host))
	})
}

// reported is what was last reported about an APIService.
type reported struct {
	entry *registry.Entry
	fault string
}

// report reports every change until ctx ends. The previous leader has reported the state before; a
// first verdict is reported only if it is bad.
func (e *Events) report(ctx context.Context, to record.EventRecorder) {
	const faultsEvery = 5 * time.Second // they change without the table, and are not urgent
	known := map[string]*reported{}
	wake := time.NewTimer(faultsEvery)
	defer wake.Stop()
	var due time.Time // of the next call of Faults
	for _, changes := range latest.Changes(ctx, e.config.Table, wake.C) {
		for _, c := range changes {
			if c.New == nil || c.New.Local() {
				delete(known, c.Key())
				continue
			}
			last := known[c.New.Name]
			switch {
			case last == nil && due.IsZero():
				last = &reported{entry: c.New}
			case last == nil:
				last = &reported{entry: &registry.Entry{}}
			}
			e.compare(to, last.entry.Verdict, c.New)
			last.entry, known[c.New.Name] = c.New, last
		}
		if now := time.Now(); !now.Before(due) {
			faults := e.config.Faults()
			for name, last := range known {
				if fault := faults[name]; fault != last.fault {
					if last.fault = fault; fault != "" && !due.IsZero() { // else the previous leader has reported it
						e.emit(to, last.entry, corev1.EventTypeWarning, "Faulty", fault)
					}
				}
			}
			due = now.Add(faultsEvery)
			wake.Reset(faultsEvery)
		}
	}
}

// compare reports how a verdict differs from what was last reported.
func (e *Events) compare(to record.EventRecorder, last registry.Verdict, entry *registry.Entry) {
	switch v := entry.Verdict; {
	case v.Status == last.Status && v.Reason == last.Reason:
	case v.Status == corev1.ConditionFalse && entry.StandIn != nil:
		e.emit(to, entry, corev1.EventTypeWarning, v.Reason, "standby "+entry.StandIn.Name+" answers: "+v.Message)
	case v.Status == corev1.ConditionFalse:
		e.emit(to, entry, corev1.EventTypeWarning, v.Reason, "requests are answered with 503: "+v.Message)
	case v.Status == corev1.ConditionTrue && last.Status == corev1.ConditionFalse:
		e.emit(to, entry, corev1.EventTypeNormal, "Available", fmt.Sprintf("requests are forwarded again, after %s of %s", time.Since(last.Since).Round(time.Second), last.Reason))
	}
}

func (e *Events) emit(to record.EventRecorder, entry *registry.Entry, kind, reason, message string) {
	if entry.Rule != nil {
		message = "further backend " + entry.Name + ": " + message
	}
	const longest = 1024 // that the apiserver accepts
	message = printable.Cut(printable.Line(message), longest-len("…"))
	e.emitted.WithLabelValues(kind).Inc()
	to.Event(&corev1.ObjectReference{Kind: "APIService", APIVersion: "apiregistration.k8s.io/v1", Name: entry.APIService(), UID: entry.Object.UID}, kind, reason, message)
}
