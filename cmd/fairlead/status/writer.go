package status

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Config is what a Writer needs. Table, APIServices, Leases and Identity must be set.
type Config struct {
	// Table returns the current table.
	Table func() *registry.Table
	// APIServices writes the conditions; it needs the verbs list on apiservices and patch on
	// apiservices/status.
	APIServices apiregistrationv1.APIServiceInterface
	// Leases elects the writer; it needs the verbs get, create and update on leases.
	Leases coordinationv1.LeasesGetter
	// Identity names this replica in the Lease. No two replicas may have the same.
	Identity string
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
	// table is of config.Table; tests have tables of their own.
	table func() table
}

// table is what is needed of a *registry.Table.
type table interface {
	Entries() []*registry.Entry
	Superseded() <-chan struct{}
}

// New makes a Writer. It does nothing until Run.
func New(c Config) (*Writer, error) {
	if c.Table == nil || c.APIServices == nil || c.Leases == nil || c.Identity == "" {
		return nil, errors.New("configuring status writer: Table, APIServices, Leases and Identity must be set")
	}
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, err
	}
	return &Writer{config: c, log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler)), metrics: m, table: func() table { return c.Table() }}, nil
}

// lease elects the one who writes.
const lease = "fairlead-status"

// Run takes part in the election until ctx ends, and writes while it leads. Losing the Lease only
// ends the writing.
func (w *Writer) Run(ctx context.Context) error {
	e := election{leases: w.config.Leases, lease: lease, identity: w.config.Identity, turn: make(chan struct{}, 1)}
	return e.run(ctx, func(ctx context.Context) {
		w.log.Info("writing statuses", "lease", lease)
		w.metrics.leading.Set(1)
		defer w.metrics.leading.Set(0)
		defer w.log.Info("no longer writing statuses", "lease", lease)
		(&term{writer: w, todo: map[string]*registry.Entry{}}).run(ctx)
	})
}
