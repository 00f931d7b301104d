// Package members keeps a Lease in kube-system for each replica that takes part in something, and
// sees which of the others live. A Lease's annotations are what its replica tells the others.
// It is of one process: of two at one address, as while one replaces the other, each has its own.
//
// A replica judges a Lease by when it saw it change, not by the clock of its holder. There is no
// lock: one goroutine calls Run, which calls all else.
//
// This package does not decide who takes part.
package members

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const (
	// LeaseDuration is how long a Lease lasts: three renewals may be lost before it expires.
	LeaseDuration = 8 * time.Second
	longest       = time.Minute // that a Lease may last by its own words: a dead replica must not count for ever
	// Interval is the time between two rounds of a few small requests, of which one writes. Another replica sees a
	// Lease change, and its expiry, up to one interval late: a dead replica counts as alive for at most 12 s.
	Interval    = 2 * time.Second
	roundLimit  = 4 * time.Second        // of a round: two fit into a Lease's duration when the apiserver hangs
	again       = time.Second            // until the next round if one has failed: three tries before a Lease expires
	sayInterval = 250 * time.Millisecond // after which this replica asks itself what it says. It costs no request
	skew        = 30 * time.Second       // by which clocks may differ: the check of clocks fails beyond it
)

// Config configures Members. All fields are required.
type Config struct {
	Client   kubernetes.Interface // keeps Leases in kube-system: list, create, update and delete
	Label    string               // selects the Leases of all replicas that take part: fairlead.dev/<what in>
	Identity string               // names this process and its Lease, and is unique
	Logger   *slog.Logger         // logs Leases that expire
}

// Members is what this replica has seen of all Leases. Make it with New.
type Members struct {
	config Config
	name   string             // of this replica's Lease
	known  map[string]*member // :: name of the Lease
	last   time.Time          // of the latest list that showed that Leases can be written
}

type member struct {
	version string    // its resourceVersion
	seen    time.Time // when this replica saw it change, or first saw it
	alive   bool
}

// New makes Members that have seen nothing.
func New(c Config) *Members {
	name := regexp.MustCompile("[^a-z0-9]+").ReplaceAllString(strings.ToLower(path.Base(c.Label)+"-"+c.Identity), "-")
	return &Members{config: c, name: "fairlead-" + name, known: map[string]*member{}}
}

// Run calls round, which calls Round, with what says returns: when that has changed, when it is
// woken, and every Interval, until ctx ends. Then it says nothing any more.
func Run(ctx context.Context, wake <-chan struct{}, says func() map[string]string,
	round func(context.Context, map[string]string) error) error {
	tick := time.Tick(sayInterval)
	var said map[string]string
	var err error // of the last round
	var due time.Time
	turn := func(says map[string]string) { // only the limit bounds it: a withdrawal cut short would leave a Lease
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), roundLimit)
		defer cancel()
		err = round(ctx, says)
		said, due = says, time.Now().Add(map[bool]time.Duration{true: Interval, false: again}[err == nil])
	}
	for ctx.Err() == nil {
		if now := says(); !maps.Equal(now, said) || !time.Now().Before(due) {
			turn(now)
		}
		select {
		case <-wake:
		case <-tick:
		case <-ctx.Done():
		}
	}
	if said != nil || err != nil {
		turn(nil)
	}
	return ctx.Err()
}

// Round renews this replica's Lease with annotations, or drops it if they are nil, and returns those of the other live
// replicas. After an error nobody is known to be alive.
func (m *Members) Round(ctx context.Context, annotations map[string]string) ([]*coordinationv1.Lease, error) {
	list, err := m.config.Client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: m.config.Label})
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	var mine *coordinationv1.Lease
	list.Items = slices.DeleteFunc(list.Items, func(l coordinationv1.Lease) bool {
		if l.Name == m.name {
			mine = &l
		}
		return l.Name == m.name
	})
	if annotations != nil {
		err = m.renew(ctx, mine, annotations)
	} else if mine != nil {
		err = m.remove(ctx, mine)
	}
	if err != nil {
		return nil, err
	}
	alive, dead := m.observe(list.Items, annotations != nil, time.Now())
	for _, l := range dead { // so that a replica that starts later does not wait for them to expire again
		if err := m.remove(ctx, l); err != nil {
			m.config.Logger.Debug("cannot delete an expired lease", "lease", l.Name, "err", err) // later rounds retry
			continue
		}
		m.config.Logger.Warn("a replica's lease has expired", "lease", l.Name)
	}
	return alive, nil
}

// observe returns the live Leases and the expired ones. wrote says that this replica has just written its own. A Lease
// expires only while it, or another one, can be written: an apiserver whose etcd is full still lists.
func (m *Members) observe(all []coordinationv1.Lease, wrote bool, now time.Time) (alive, dead []*coordinationv1.Lease) {
	writable := wrote || slices.ContainsFunc(all, func(l coordinationv1.Lease) bool {
		k := m.known[l.Name]
		return k == nil || k.version != l.ResourceVersion
	})
	if writable {
		if now.Sub(m.last) > LeaseDuration {
			for _, k := range m.known {
				k.seen = now // nobody could renew, or we may have missed it
			}
		}
		m.last = now
	}
	names := map[string]bool{}
	for i := range all {
		l := &all[i]
		names[l.Name] = true
		k := m.known[l.Name]
		// Another release may renew less often: the Lease says for how long it lasts.
		lasts := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, int32(LeaseDuration/time.Second))) * time.Second
		lasts = min(lasts, longest)
		switch {
		case k == nil: // no renewal seen yet: trust the Lease's renewTime, of a clock that may be as wrong as ours
			k = &member{version: l.ResourceVersion, seen: now}
			k.alive = l.Spec.RenewTime != nil && now.Before(l.Spec.RenewTime.Add(lasts+skew))
			m.known[l.Name] = k
		case k.version != l.ResourceVersion:
			k.version, k.seen, k.alive = l.ResourceVersion, now, true
		case writable && now.Sub(k.seen) >= lasts:
			k.alive = false
			dead = append(dead, l)
		}
		if k.alive {
			alive = append(alive, l)
		}
	}
	maps.DeleteFunc(m.known, func(name string, _ *member) bool { return !names[name] })
	return alive, dead
}

func (m *Members) renew(ctx context.Context, mine *coordinationv1.Lease, annotations map[string]string) error {
	leases := m.config.Client.CoordinationV1().Leases(metav1.NamespaceSystem)
	lease := cmp.Or(mine, &coordinationv1.Lease{}).DeepCopy()
	lease.Namespace, lease.Name, lease.Annotations = metav1.NamespaceSystem, m.name, annotations
	metav1.SetMetaDataLabel(&lease.ObjectMeta, m.config.Label, "")
	lease.Spec.HolderIdentity = &m.config.Identity
	lease.Spec.RenewTime = new(metav1.NowMicro())
	lease.Spec.LeaseDurationSeconds = new(int32(LeaseDuration / time.Second))
	var err error
	if mine == nil {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renewing lease: %w", err)
	}
	return nil
}

// remove deletes a Lease unless it has been renewed, or made anew, since it was read.
func (m *Members) remove(ctx context.Context, l *coordinationv1.Lease) error {
	only := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &l.ResourceVersion}}
	err := m.config.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, l.Name, only)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("dropping lease: %w", err)
}
