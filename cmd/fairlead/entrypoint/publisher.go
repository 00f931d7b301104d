// Package entrypoint makes Fairlead the server that clients inside the cluster reach: it publishes
// the ready replicas as the Endpoints and EndpointSlices of the Service default/kubernetes.
// kube-apiserver must leave those alone (--endpoint-reconciler-type=none).
//
// Each replica keeps a Lease in kube-system while it is ready, and publishes the addresses of all
// live Leases. A replica's address disappears at once when it drains, and when its Lease expires
// after it has died. Published objects carry an annotation that repeats their content. If the two differ,
// another writer has changed the object; Fairlead gives way to a writer that persists.
//
// Everything happens on Run's goroutine; Withdraw only leaves it a note. There is no lock.
//
// This package does not decide readiness, and does not create the Service.
package entrypoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/members"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
)

// Config configures a Publisher. All fields but Logger and Metrics are required.
type Config struct {
	// Client writes default/kubernetes as Endpoints (it needs the verbs get, create and update) and
	// EndpointSlices, keeps Leases in kube-system (list, create, update and delete for both), and may list Services.
	Client       kubernetes.Interface
	Address      netip.AddrPort // where clients reach this replica: one that CheckAddress accepts, with a port
	Zone         string         // this replica's. Empty means that it is unknown
	Identity     string         // names this process. It must be unique
	Ready        func() error   // returns nil while this replica accepts requests. It must not block
	Ended        func(error)    // is told how each round of renewing and publishing has ended
	metric.Sinks                // changes
}

const (
	addressAnnotation = "fairlead.dev/advertise-address" // the address of a Lease's replica
	zoneAnnotation    = "fairlead.dev/zone"              // its zone. Empty, or none as in older releases, means unknown
)

// Publisher publishes this replica and removes dead ones. It does nothing before Run.
type Publisher struct {
	config    Config
	log       *slog.Logger
	metrics   *metrics
	members   *members.Members
	contest   contest
	leaving   chan struct{} // wakes Run
	withdrawn atomic.Bool   // by Withdraw, which wakes it

	// Used only by Run's goroutine:
	served    bool  // this replica was ready once
	published bool  // our Lease should exist
	unfit     error // why nobody would be sent to our address, when that was last known
}

// New makes a Publisher.
func New(c Config) *Publisher {
	c.Address = netip.AddrPortFrom(c.Address.Addr().Unmap(), c.Address.Port())
	log := c.Log()
	m := members.New(members.Config{
		Client: c.Client, Label: "fairlead.dev/entrypoint", Identity: c.Identity, Logger: log,
	})
	return &Publisher{config: c, log: log, metrics: newMetrics(c.Metrics), leaving: make(chan struct{}, 1), members: m}
}

// CheckAddress returns why clients cannot use an address. Kubernetes would reject it too.
func CheckAddress(a netip.Addr) error {
	if !a.IsValid() || a.Unmap().IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() ||
		a.IsMulticast() || a.Zone() != "" {
		return fmt.Errorf("address %q cannot be reached by others", a)
	}
	return nil
}

// Withdraw removes this replica at once and for good, before the process ends. It does not block,
// and may be called repeatedly by any goroutine.
func (p *Publisher) Withdraw() {
	p.withdrawn.Store(true)
	latest.Wake(p.leaving)
}

// Run publishes until ctx ends, and withdraws before it returns.
func (p *Publisher) Run(ctx context.Context) error {
	return members.Run(ctx, p.leaving, func() map[string]string {
		if p.withdrawn.Load() || p.config.Ready() != nil {
			return nil
		}
		return map[string]string{addressAnnotation: p.config.Address.String(), zoneAnnotation: p.config.Zone}
	}, p.round)
}

// round renews or drops our own Lease, then publishes the live ones. The next retries what fails.
func (p *Publisher) round(ctx context.Context, says map[string]string) error {
	// A replica that was never ready must not write: it would replace what kube-apiserver published with nothing.
	if p.served = p.served || says != nil; !p.served {
		return nil
	}
	var unfit error
	if says != nil {
		if unfit = p.fits(ctx); unfit != nil {
			says = nil
		}
	}
	err := errors.Join(unfit, p.tryToPublish(ctx, says))
	p.config.Ended(err)
	p.metrics.rounds.WithLabelValues(map[bool]string{false: "passed", true: "failed"}[err != nil]).Inc()
	return err
}

// fits returns an error if the Service lacks our address's IP family. kube-apiserver refuses to start then, too
// (validatePublicIPServiceClusterIPRangeIPFamilies). Without the right to list Services that is not known.
func (p *Publisher) fits(ctx context.Context) error {
	family := corev1.IPv4Protocol
	if p.config.Address.Addr().Is6() {
		family = corev1.IPv6Protocol
	}
	list, err := p.config.Client.CoreV1().Services(metav1.NamespaceDefault).List(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + service})
	if err != nil || len(list.Items) == 0 {
		return p.unfit
	}
	p.unfit = nil
	if has := list.Items[0].Spec.IPFamilies; len(has) > 0 && !slices.Contains(has, family) {
		p.unfit = fmt.Errorf("the Service kubernetes has no %s, which the address %v is: it is not published",
			family, p.config.Address.Addr())
	}
	return p.unfit
}

// tryToPublish reads what is published before it reads who is alive: if another replica publishes
// meanwhile, ours is a conflict. Otherwise it would bring back an address just withdrawn.
func (p *Publisher) tryToPublish(ctx context.Context, says map[string]string) error {
	for again := true; ; again = false {
		have, list, unread := p.read(ctx)
		alive, err := p.liveAddresses(ctx, says)
		if err != nil {
			return err // nobody is known to be alive, and publishing would remove everyone
		}
		p.metrics.replicas.Set(float64(len(alive)))
		if unread != nil {
			return unread
		}
		// What another publishes is better than nobody: an operator may do so while the last replica still drains. And
		// who does not drain erases nobody: kube-apiserver refuses that, too (pkg/controlplane/reconcilers/lease.go).
		others := have.Annotations[contentAnnotation] == "" || foreign(have, list)
		lets := len(alive) == 0 && (others || !p.withdrawn.Load())
		if !lets && p.mayWrite(have, list, time.Now()) {
			err = errors.Join(p.writeEndpoints(ctx, have, alive), p.writeSlices(ctx, list, groups(alive)))
		} else if foreign(have, list) { // nobody would keep ours beside another's up to date
			err = p.writeSlices(ctx, list, nil)
		}
		if faster := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err); !faster || !again {
			return err
		}
	}
}

// liveAddresses renews our Lease with what it says, or drops it, and returns those of live replicas
// with their zones: all empty if one is, since kube-proxy heeds hints only if each endpoint has some.
func (p *Publisher) liveAddresses(ctx context.Context, says map[string]string) (map[netip.AddrPort]string, error) {
	alive, err := p.members.Round(ctx, says)
	ready := says != nil
	p.metrics.published.Set(metric.Number(ready && err == nil)) // one that is not renewed expires
	if err != nil {
		return nil, err
	}
	if ready != p.published {
		p.log.Info("the lease of this replica changed", "address", p.config.Address.String(), "published", ready)
	}
	p.published = ready
	zones, unknown := map[netip.AddrPort]string{}, false
	if ready {
		zones[p.config.Address], unknown = p.config.Zone, p.config.Zone == ""
	}
	for _, l := range alive {
		// Who may write such Leases may publish an address, but with an invalid one the whole list would be refused.
		a, err := netip.ParseAddrPort(l.Annotations[addressAnnotation])
		if err = cmp.Or(err, CheckAddress(a.Addr())); err != nil || a.Port() == 0 {
			p.log.Debug("a lease has no address", "lease", l.Name, "err", err)
			continue
		}
		zone := l.Annotations[zoneAnnotation]
		zones[netip.AddrPortFrom(a.Addr().Unmap(), a.Port())] = zone
		unknown = unknown || zone == "" || len(validation.IsValidLabelValue(zone)) > 0
	}
	for a := range zones {
		if unknown {
			zones[a] = ""
		}
	}
	return zones, nil
}

type metrics struct {
	published, replicas, contested prometheus.Gauge
	foreign                        prometheus.Counter
	rounds                         *prometheus.CounterVec // :: result
}

func newMetrics(r prometheus.Registerer) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_entrypoint_" + name, Help: help})
	}
	m := &metrics{
		published: gauge("published", "1 while this replica has its Lease and so is an endpoint of the Service "+
			"default/kubernetes."),
		replicas: gauge("replicas", "Replicas with a Lease, as this one sees them."),
		contested: gauge("contested", "1 while Fairlead gives way to another writer, such as kube-apiserver's own "+
			"reconciler, until no other writer has changed the endpoints of default/kubernetes for a minute."),
		foreign: metric.Count("fairlead_entrypoint_foreign_writes_total",
			"Changes of the endpoints of default/kubernetes by writers other than Fairlead."),
		rounds: metric.Counter("fairlead_entrypoint_rounds_total",
			"Rounds of renewing the Lease and publishing, by result (passed, failed).", "result", "passed", "failed"),
	}
	metric.Register(r, m.published, m.replicas, m.contested, m.foreign, m.rounds)
	return m
}
