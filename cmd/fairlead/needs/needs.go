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
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/internal/printable"
)

// Pace is how often the checks are asked: a load balancer takes seconds to notice, too.
const Pace = time.Second

// The states of a check.
const (
	Passed  = "passed"
	Failed  = "failed"
	Unknown = "unknown" // it was not checked yet, or cannot be
)

// Check is one need. Gate or Look must be set.
type Check struct {
	Name string // of the check
	// Gate returns why this replica can serve nobody, as a check of health.Checks; the request is
	// nil. Nil means that somebody is always served.
	Gate func(*http.Request) error
	// Look returns what is wrong beside that: a Check without Name, Since, Gates and Runbook. An
	// empty Status means passed. Nil means nothing.
	Look func(now time.Time) answer.Check
}

// Config configures New.
type Config struct {
	Checks       []Check     // all needs, in the order shown
	Ready        func() bool // says whether this replica accepts requests
	Runbook      string      // the address of the checks' runbook
	metric.Sinks             // changes, and fairlead_ready
}

// Needs has the checks. Make it with New. Until Run has begun they are unknown.
type Needs struct {
	cfg   Config
	last  atomic.Pointer[[]answer.Check]
	ready bool // this replica accepted requests once. Only look uses it
}

// New makes Needs. It asks no check.
func New(cfg Config) *Needs {
	cfg.Logger = cfg.Log()
	n := &Needs{cfg: cfg}
	all := make([]answer.Check, len(cfg.Checks))
	for i, c := range cfg.Checks {
		all[i] = answer.Check{Name: c.Name, Status: Unknown}
	}
	n.last.Store(&all)
	ready := prometheus.NewDesc("fairlead_ready", "0 while the check fails, otherwise 1. Two sum up: "+
		"readyz is 1 while this replica accepts requests, users is 1 while no check fails that users notice.",
		[]string{"check"}, nil)
	states := func(gauge func(*prometheus.Desc, float64, ...string)) {
		users := true
		for _, c := range n.List() {
			gauge(ready, metric.Number(!c.Failed()), c.Name)
			users = users && (!c.Failed() || c.Gates || c.Users == "")
		}
		gauge(ready, metric.Number(cfg.Ready()), "readyz")
		gauge(ready, metric.Number(users), "users")
	}
	metric.Register(cfg.Metrics, metric.Gauges{All: []*prometheus.Desc{ready}, Make: states})
	return n
}

// Gates returns the gates as the list of health.Checks, and all checks as those beside it.
func (n *Needs) Gates() (gates, others []healthz.HealthChecker) {
	for i, c := range n.cfg.Checks {
		gate := func(*http.Request) error { return nil }
		if c.Gate != nil {
			gate = c.Gate
			gates = append(gates, healthz.NamedCheck(c.Name, gate))
		}
		others = append(others, healthz.NamedCheck(c.Name, func(r *http.Request) error {
			if at := &(*n.last.Load())[i]; at.Failed() && !at.Gates { // its gate, if any, passed then
				return errors.New(at.Message)
			}
			return gate(r) // as it is now
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
			if err := c.Gate(nil); err != nil { // what Look has found says more
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
		case found.Status == was.Status && printable.Cause(found.Message) == printable.Cause(was.Message):
		case found.Gates && !n.ready: // as in every process that has just started
			n.cfg.Logger.Info("not ready yet", "check", c.Name, "reason", found.Message)
		case found.Status == Failed:
			n.cfg.Logger.Warn("a check fails", "check", c.Name, "reason", found.Message, "users", found.Users)
		case was.Status == Failed:
			n.cfg.Logger.Info("a check fails no longer", "check", c.Name)
		}
	}
	n.last.Store(&all)
	n.ready = n.ready || n.cfg.Ready()
}

// Outcome is how the last of many things ended that this process does anyway: reviews, or writes. Zero has seen none.
type Outcome struct{ fault atomic.Pointer[fault] }

type fault struct {
	err error
	at  time.Time
}

// Note notes the end of one.
func (o *Outcome) Note(err error) {
	if err != nil {
		o.fault.Store(&fault{err, time.Now()})
	} else if o.fault.Load() != nil {
		o.fault.Store(nil)
	}
}

const fresh = time.Minute // a fault counts so long if none was done since, but a like one succeeded

// Err returns the last one's error. like is when something like it last succeeded; zero means never.
func (o *Outcome) Err(like time.Time) error {
	f := o.fault.Load()
	if f == nil || time.Since(f.at) > fresh && like.After(f.at) {
		return nil
	}
	return f.err
}

// Clock compares this machine's clock with that of the servers that answer.
type Clock struct {
	ahead atomic.Int64 // of theirs, in seconds
	fault atomic.Pointer[error]
}

// Wrap fits rest.Config.Wrap.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		sent := time.Now()
		res, err := next.RoundTrip(r)
		if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			c.fault.Store(&err)
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // a transport passes errors on
		}
		c.fault.Store(nil)
		if at, err := http.ParseTime(res.Header.Get("Date")); err == nil { // made between sent and now
			c.ahead.Store(int64((max(0, sent.Sub(at)-time.Second) - max(0, time.Until(at))).Seconds()))
		}
		return res, nil
	})
}

// Look is the check.
func (c *Clock) Look(time.Time) answer.Check {
	const maxAhead = 30 * time.Second // JSON web tokens have a tolerance of a minute, and Date a resolution of a second
	ahead := time.Duration(c.ahead.Load()) * time.Second
	found := answer.Check{Status: Failed, Advice: "synchronize the clocks of this machine and of the local apiserver " +
		"(NTP): tokens and certificates are judged by them"}
	switch fault := c.fault.Load(); {
	case fault != nil:
		found.Message = "the local apiserver's certificate is not valid at this machine's time: " + (*fault).Error()
		found.Advice = "renew that certificate if it has expired, or else " + found.Advice
	case ahead > maxAhead:
		found.Message = fmt.Sprintf("this machine's clock is %s ahead of the local apiserver's", ahead)
	case ahead < -maxAhead:
		found.Message = fmt.Sprintf("this machine's clock is %s behind the local apiserver's", -ahead)
	default:
		return answer.Check{}
	}
	return found
}
