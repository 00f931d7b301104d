// Package needs keeps what this process itself needs as checks, as health keeps backends: one list
// for the pages, the health paths, the metric and the log.
//
// One goroutine, Run's, asks every check; readers load the last list. A check does no I/O: what
// must ask somebody, as Rights does, has a loop of its own.
//
// It does not decide whether this replica is ready: health.Checks does, of the same gates.
package needs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/metric"
)

// Pace is how often the checks are asked: a load balancer takes seconds to notice, too.
const Pace = time.Second

// The states of a check.
const (
	Passed = "passed"
	Failed = "failed"
	// Unknown means that it was not checked yet, or cannot be.
	Unknown = "unknown"
)

// Check is one need. Gate or Look must be set.
type Check struct {
	// Name is the check's.
	Name string
	// Gate returns why this replica can serve nobody, as a check of health.Checks; the request is
	// nil. Nil means that somebody is always served.
	Gate func(*http.Request) error
	// Look returns what is wrong beside that: a Check without Name, Since, Gates and Runbook. An
	// empty Status means passed. Nil means nothing.
	Look func(now time.Time) answer.Check
}

// Config configures New.
type Config struct {
	// Checks are all needs, in the order shown.
	Checks []Check
	// Ready says whether this replica accepts requests.
	Ready func() bool
	// Runbook is the address of the checks' runbook.
	Runbook string
	// Logger gets changes. Nil discards.
	Logger *slog.Logger
	// Metrics registers fairlead_ready. Nil means unregistered.
	Metrics prometheus.Registerer
}

// Needs has the checks. Make it with New. Until Run has begun they are unknown.
type Needs struct {
	cfg  Config
	last atomic.Pointer[[]answer.Check]
}

// New makes Needs. It asks no check.
func New(cfg Config) *Needs {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	n := &Needs{cfg: cfg}
	all := make([]answer.Check, len(cfg.Checks))
	for i, c := range cfg.Checks {
		all[i] = answer.Check{Name: c.Name, Status: Unknown}
	}
	n.last.Store(&all)
	ready := prometheus.NewDesc("fairlead_ready", "0 while the check fails, otherwise 1. Two sum up: "+
		"readyz is 1 while this replica accepts requests, users is 1 while no check fails that users notice.", []string{"check"}, nil)
	metric.Register(cfg.Metrics, metric.Gauges{All: []*prometheus.Desc{ready}, Make: func(gauge func(*prometheus.Desc, float64, ...string)) {
		users := true
		for _, c := range n.List() {
			gauge(ready, metric.Number(!c.Failed()), c.Name)
			users = users && (!c.Failed() || c.Gates || c.Users == "")
		}
		gauge(ready, metric.Number(cfg.Ready()), "readyz")
		gauge(ready, metric.Number(users), "users")
	}})
	return n
}

// Gates returns the gates as the list of health.Checks, and the other checks as those beside it.
func (n *Needs) Gates() (gates, others []healthz.HealthChecker) {
	for i, c := range n.cfg.Checks {
		if c.Gate != nil {
			gates = append(gates, healthz.NamedCheck(c.Name, c.Gate))
			continue
		}
		others = append(others, healthz.NamedCheck(c.Name, func(*http.Request) error {
			if at := &(*n.last.Load())[i]; at.Status == Failed {
				return errors.New(at.Message)
			}
			return nil
		}))
	}
	return gates, others
}

// List returns the checks as last asked. A gate that passes now passes, as readiness says.
func (n *Needs) List() []answer.Check {
	all := slices.Clone(*n.last.Load())
	for i, c := range n.cfg.Checks {
		if all[i].Gates && c.Gate(nil) == nil {
			all[i] = answer.Check{Name: c.Name, Status: Passed, Since: time.Now()}
		}
	}
	return all
}

// Run asks the checks until ctx ends.
func (n *Needs) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { n.look(time.Now()) }, Pace)
	return ctx.Err()
}

func (n *Needs) look(now time.Time) {
	all, last := make([]answer.Check, len(n.cfg.Checks)), *n.last.Load()
	for i, c := range n.cfg.Checks {
		was, found := &last[i], answer.Check{}
		if c.Look != nil {
			found = c.Look(now)
		}
		if c.Gate != nil {
			if err := c.Gate(nil); err != nil {
				// What Look has found says more.
				found.Status, found.Gates, found.Message = Failed, true, cmp.Or(found.Message, err.Error())
			}
		}
		found.Name, found.Since, found.Status = c.Name, now, cmp.Or(found.Status, Passed)
		if found.Status == Failed {
			found.Runbook = n.cfg.Runbook
		}
		if found.Status == was.Status {
			found.Since = was.Since
		}
		all[i] = found
		switch {
		case found.Status == was.Status && found.Message == was.Message:
		case found.Gates: // health.Checks logs it
		case found.Status == Failed:
			n.cfg.Logger.Warn("a check fails", "check", c.Name, "reason", found.Message, "users", found.Users)
		case was.Status == Failed:
			n.cfg.Logger.Info("a check fails no longer", "check", c.Name)
		}
	}
	n.last.Store(&all)
}
