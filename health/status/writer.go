package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Config is what a Writer needs. Table, APIServices, Leases and Identity must be set.
type Config struct {
	// Table returns the current table.
	Table func() *registry.Table
	// APIServices writes the conditions; it needs the verbs list on apiservices and patch on apiservices/status.
	APIServices apiregistrationv1.APIServiceInterface
	// Leases elects the writer; it needs the verbs get, create and update on leases.
	Leases coordinationv1.LeasesGetter
	// Identity names this replica in the Lease. No two replicas may have the same.
	Identity string
	// Namespace and Lease name the Lease. Empty: kube-system, fairlead-status.
	Namespace, Lease string
	// Logger gets writes that fail and changes of the leader. Nil discards.
	Logger *slog.Logger
	// Metrics takes the writer's metrics. Nil: unregistered.
	Metrics prometheus.Registerer
}

// Writer writes conditions while it leads.
type Writer struct {
	config  Config
	log     *slog.Logger
	metrics *metrics
	turn    chan struct{} // holds an element while a goroutine writes
	// source is config.Table taken apart.
	source func() (entries []*registry.Entry, superseded <-chan struct{})
}

// The times of the election are those of Kubernetes' own components: a leader that dies is replaced within some 17 s, and one that cannot
// reach the apiserver for 10 s stops writing 5 s before another may begin.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// New makes a Writer. It does nothing until Run.
func New(c Config) (*Writer, error) {
	if c.Table == nil || c.APIServices == nil || c.Leases == nil || c.Identity == "" {
		return nil, errors.New("configuring status writer: Table, APIServices, Leases and Identity must be set")
	}
	if c.Namespace == "" {
		c.Namespace = metav1.NamespaceSystem
	}
	if c.Lease == "" {
		c.Lease = "fairlead-status"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, err
	}
	w := &Writer{config: c, log: c.Logger, metrics: m, turn: make(chan struct{}, 1)}
	w.source = func() ([]*registry.Entry, <-chan struct{}) {
		t := c.Table()
		return t.Entries(), t.Superseded()
	}
	return w, nil
}

// Run takes part in the election until ctx ends, and writes while it leads. Losing the Lease only ends the writing.
func (w *Writer) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		// A new elector each time: one that has lost keeps what it last saw of the Lease.
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name: w.config.Lease,
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: w.config.Namespace, Name: w.config.Lease},
				Client:     w.config.Leases,
				LockConfig: resourcelock.ResourceLockConfig{Identity: w.config.Identity},
			},
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			// A write that is in flight then is cut by its context, and the next leader reads every condition before it writes any.
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: w.lead,
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return fmt.Errorf("configuring election: %w", err)
		}
		elector.Run(ctx)
		w.turn <- struct{}{} // wait for lead to end; one that has not even begun finds its context ended
		<-w.turn
	}
	return ctx.Err()
}

// lead writes until ctx ends: the election cancels it when the Lease is lost.
func (w *Writer) lead(ctx context.Context) {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	if ctx.Err() != nil {
		return
	}
	w.log.Info("writing statuses", "lease", w.config.Lease)
	w.metrics.leading.Set(1)
	defer w.metrics.leading.Set(0)
	defer w.log.Info("no longer writing statuses", "lease", w.config.Lease)
	(&term{writer: w, entries: map[string]*written{}}).run(ctx)
}
