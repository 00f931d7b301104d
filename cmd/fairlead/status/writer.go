package status

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	typed "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Config configures a Writer. Table, APIServices, and either Elect or Leases and Identity are
// required.
type Config struct {
	// Table returns the current table.
	Table func() *registry.Table
	// APIServices writes the conditions; it needs the verbs list on apiservices and patch on
	// apiservices/status.
	APIServices typed.APIServiceInterface
	// Leases elects the writer; it needs the verbs get, create and update on leases.
	Leases coordinationv1.LeasesGetter
	// Identity names this replica in the Lease. It must be unique.
	Identity string
	// Elect elects the writer in another way: it calls lead while this replica leads, until ctx
	// ends. The Writer then writes the condition Available, of Local APIServices too. Nil means
	// that Leases elect.
	Elect func(ctx context.Context, name string, lead func(context.Context)) error
	// Logger logs failed writes and changes of the leader. Nil discards them.
	Logger *slog.Logger
	// Metrics registers the writer's metrics. Nil means they are not registered.
	Metrics prometheus.Registerer
}

// Writer writes conditions while it leads.
type Writer struct {
	config  Config
	log     *slog.Logger
	metrics *metrics
	// table calls config.Table; tests replace it.
	table func() table
	elect func(ctx context.Context, name string, lead func(context.Context)) error
	// condition is the type of the condition that is written.
	condition apiregistrationv1.APIServiceConditionType
}

// table is the part of *registry.Table that is used.
type table interface {
	Entries() []*registry.Entry
	Superseded() <-chan struct{}
}

// New makes a Writer. It does nothing until Run.
func New(c Config) (*Writer, error) {
	if c.Table == nil || c.APIServices == nil || c.Elect == nil && (c.Leases == nil || c.Identity == "") {
		return nil, errors.New("configuring status writer: Table, APIServices, and Elect or Leases and Identity must be set")
	}
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, err
	}
	w := &Writer{config: c, log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler)), metrics: m, table: func() table { return c.Table() }, elect: c.Elect, condition: apiregistrationv1.Available}
	if w.elect == nil {
		w.condition = conditionType
		w.elect = func(ctx context.Context, name string, lead func(context.Context)) error {
			e := election{leases: c.Leases, lease: name, identity: c.Identity, turn: make(chan struct{}, 1)}
			return e.run(ctx, lead)
		}
	}
	return w, nil
}

// lease names the Lease that elects the writer.
const lease = "fairlead-status"

// Run takes part in the election until ctx ends, and writes while it leads.
func (w *Writer) Run(ctx context.Context) error {
	return w.elect(ctx, lease, func(ctx context.Context) {
		w.log.Info("writing statuses", "lease", lease)
		w.metrics.leading.Set(1)
		defer w.metrics.leading.Set(0)
		defer w.log.Info("no longer writing statuses", "lease", lease)
		(&term{writer: w, todo: map[string]*registry.Entry{}}).run(ctx)
	})
}
