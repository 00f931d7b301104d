// Package status writes verdicts where users look: the condition fairlead.dev/Available of each
// remote APIService, and Events when a verdict changes.
//
// kube-apiserver's own controllers own the condition Available and cannot be switched off. This package writes
// Available only where they do not run: if APIServices are in an etcd of our own. Only one replica writes, elected by a
// Lease: kube-aggregator lets every replica write the same object, and replicas that see the network differently fight
// (kubernetes/kubernetes#81504, #64698). The leader writes its own verdicts.
//
// Everything happens on Run's goroutine and, while this replica leads, on one more that Run waits
// for. Package status decides no verdict, and nothing reads the condition back to route by it.
package status

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	typed "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Config configures a Writer or Events. Table is required, and for a Writer APIServices and either
// Elect or Client; for Events, Client and Faults.
type Config struct {
	Table       func() latest.State[*registry.Entry] // returns the current table
	APIServices typed.APIServiceInterface            // writes conditions: list apiservices, patch apiservices/status
	// Client elects one replica by a Lease, where Identity is this replica's unique name; it needs
	// the verbs get, create and update on leases. It also writes Events, for which it needs create
	// and patch on events beside the policy's ConfigMap, and in default for cluster-scoped objects.
	Client   kubernetes.Interface
	Identity string
	// Elect elects the writer otherwise: it calls lead while this replica leads, until ctx ends.
	// Then the condition is Available, of Local APIServices too. Nil means that a Lease elects.
	Elect        func(ctx context.Context, name string, lead func(context.Context)) error
	Faults       func() map[string]string // returns other faults of APIServices by name, such as an unreadable bundle
	metric.Sinks                          // failed writes, and changes of the leader
}

// Writer writes conditions while it leads.
type Writer struct {
	config    Config
	log       *slog.Logger
	leading   prometheus.Gauge
	writes    *prometheus.CounterVec                    // :: result
	condition apiregistrationv1.APIServiceConditionType // that is written
}

// New makes a Writer. It does nothing until Run.
func New(c Config) *Writer {
	w := &Writer{
		config: c, log: c.Log(), condition: apiregistrationv1.Available,
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_status_writer_leading", Help: "1 while this replica holds the Lease and writes statuses.",
		}),
		writes: metric.Counter("fairlead_status_write_total", "Writes of conditions of APIServices, "+
			"by result (written, failed).", "result", "written", "failed"),
	}
	if c.Elect == nil {
		w.condition, w.config.Elect = conditionType, c.elect
	}
	metric.Register(c.Metrics, w.leading, w.writes)
	return w
}

const lease = "fairlead-status"

// Run takes part in the election until ctx ends, and writes while it leads.
func (w *Writer) Run(ctx context.Context) error {
	return w.config.Elect(ctx, lease, func(ctx context.Context) {
		w.log.Info("writing statuses", "lease", lease)
		w.leading.Set(1)
		defer w.leading.Set(0)
		defer w.log.Info("no longer writing statuses", "lease", lease)
		(&term{writer: w, todo: map[string]*registry.Entry{}}).run(ctx)
	})
}

// elect runs for a Lease in kube-system until ctx ends, also after losing it, and calls lead while this replica leads.
func (c Config) elect(ctx context.Context, lease string, lead func(context.Context)) error {
	turn := make(chan struct{}, 1) // holds an element while a goroutine leads
	for ctx.Err() == nil {
		// A new elector each time: one that has lost remembers an old state of the Lease.
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name: lease,
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: lease},
				Client:     c.Client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
			},
			// As of Kubernetes' own components, a dead leader is replaced within about 17 s. One whose renewals hang
			// leads for a period and two deadlines (client-go first tries to release): 14 s, before another may begin.
			LeaseDuration: 15 * time.Second, RenewDeadline: 6 * time.Second, RetryPeriod: 2 * time.Second,
			// The context ends a write in flight, and the next leader first reads every condition.
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { // canceled when the Lease is lost
					turn <- struct{}{}
					defer func() { <-turn }()
					if ctx.Err() == nil {
						lead(ctx)
					}
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return fmt.Errorf("configuring election: %w", err)
		}
		elector.Run(ctx)
		turn <- struct{}{} // wait for lead to end; if it has not started yet, its context has ended
		<-turn
	}
	return ctx.Err()
}

// Events reports changed verdicts as Events on the APIServices, while this replica leads, and always its own refusals.
// client-go's recorder merges similar Events, drops those that one object repeats too often (25 at
// once of each type, then one in five minutes), and queues at most a thousand for the apiserver.
type Events struct {
	config   Config
	log      *slog.Logger
	emitted  *prometheus.CounterVec               // :: type
	recorder atomic.Pointer[record.EventRecorder] // nil unless Run runs
}

// NewEvents makes Events. It does nothing until Run.
func NewEvents(c Config) *Events {
	e := &Events{config: c, log: c.Log(), emitted: metric.Counter("fairlead_event_total",
		"Events emitted, by type (Normal, Warning), before similar ones are merged.",
		"type", corev1.EventTypeNormal, corev1.EventTypeWarning)}
	metric.Register(c.Metrics, e.emitted)
	return e
}

// Run takes part in the election until ctx ends, and reports changes while it leads.
func (e *Events) Run(ctx context.Context) error {
	const lease = "fairlead-events"
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: e.config.Client.CoreV1().Events("")})
	defer broadcaster.Shutdown()
	host := corev1.EventSource{Component: "fairlead", Host: e.config.Identity}
	var to record.EventRecorder = broadcaster.NewRecorder(runtime.NewScheme(), host)
	e.recorder.Store(&to)
	defer e.recorder.Store(nil)
	return e.config.elect(ctx, lease, func(ctx context.Context) {
		e.log.Info("reporting verdicts as events", "lease", lease)
		defer e.log.Info("no longer reporting verdicts as events", "lease", lease)
		e.report(ctx, to)
	})
}

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
	var due time.Time // of the next call of Faults
	for _, changes := range latest.Changes(ctx, e.config.Table, wake.C) {
		for _, c := range changes {
			if c.New == nil || c.New.Local() || c.New.Hidden != "" { // 404 is what the policy asks for
				delete(known, c.Key())
				continue
			}
			last := known[c.New.Name]
			switch {
			case last == nil && due.IsZero():
				last = &reported{entry: c.New}
			case last == nil:
				last = &reported{entry: &registry.Entry{}}
			case c.New.Verdict.Status == "":
				continue // its new endpoints are not probed yet: until then the last verdict counts
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
		lasted := time.Since(last.Since).Round(time.Second)
		e.emit(to, entry, corev1.EventTypeNormal, "Available",
			fmt.Sprintf("requests are forwarded again, after %s of %s", lasted, last.Reason))
	}
}

func (e *Events) emit(to record.EventRecorder, entry *registry.Entry, kind, reason, message string) {
	if entry.Rule != nil && entry.Rule.When == nil {
		message = "standby " + entry.Name + ", while it is needed: " + message
	} else if entry.Rule != nil {
		message = "further backend " + entry.Name + ": " + message
	}
	const longest = 1024 // that the apiserver accepts
	message = printable.Cut(printable.Line(message), longest-len("…"))
	e.emitted.WithLabelValues(kind).Inc()
	to.Event(&corev1.ObjectReference{
		APIVersion: "apiregistration.k8s.io/v1", Kind: "APIService", Name: entry.APIService(), UID: entry.Object.UID,
	}, kind, reason, message)
}
