package health

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/server/healthz"
)

// ownCheck names this process's readiness check, on the admin port and in responses for clusters.
const ownCheck = "fairlead"

// Checks answers a health path as kube-apiserver does: /readyz with ?verbose and ?exclude=, and /readyz/<check> for one
// of them. Two checks come before those listed: ping, which always passes, and fairlead, which fails while draining.
type Checks struct {
	Name string // the path without its slash: livez, readyz
	// Draining ends readiness, before anything else of a shutdown: once true, the check fairlead
	// fails. Nil means that there is no such check (a process that drains is alive).
	Draining *atomic.Bool
	// List holds the checks, in the order shown. None may block. Empty means only those above.
	List []healthz.HealthChecker
	// Others do not end readiness. ?verbose lists them after the result, and each has a path. One with the name of a
	// check in List fails with that, or beside it. Empty means none.
	Others []healthz.HealthChecker

	mux     http.ServeMux // Kubernetes' own handlers
	install sync.Once     // of them
}

// ServeHTTP answers the path and those below it. No response has reasons: strangers may ask.
func (c *Checks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.install.Do(func() {
		var gates, others http.ServeMux
		healthz.InstallPathHandler(&gates, "/"+c.Name, withheld(c.all())...)
		healthz.InstallPathHandler(&others, "/"+c.Name, withheld(c.Others)...)
		c.mux.Handle("/", &gates)
		for _, k := range c.Others {
			c.mux.Handle("/"+c.Name+"/"+k.Name(), &others)
		}
	})
	r = r.Clone(r.Context())
	r.URL.Path = strings.TrimRight(r.URL.Path, "/")
	c.mux.ServeHTTP(w, r)
	if r.URL.Path != "/"+c.Name || !r.URL.Query().Has("verbose") {
		return
	}
	for _, k := range c.Others {
		line, fails := "[+]%s ok\n", k.Check(r) != nil
		if fails {
			line = "[-]%s failed, which does not end readiness: reason withheld\n"
		}
		said := func(g healthz.HealthChecker) bool { return g.Name() == k.Name() && (!fails || g.Check(r) != nil) }
		if !slices.ContainsFunc(c.List, said) {
			_, _ = fmt.Fprintf(w, line, k.Name()) // a client that has gone needs no response
		}
	}
}

func withheld(all []healthz.HealthChecker) (checks []healthz.HealthChecker) {
	for _, k := range all {
		checks = append(checks, healthz.NamedCheck(k.Name(), func(r *http.Request) error {
			if k.Check(r) != nil {
				return errors.New("reason withheld")
			}
			return nil
		}))
	}
	return checks
}

// Err returns why this process is not ready, nil when it is.
func (c *Checks) Err(r *http.Request) error {
	for _, k := range c.all() {
		if err := k.Check(r); err != nil {
			return fmt.Errorf("%s: %w", k.Name(), err)
		}
	}
	return nil
}

func (c *Checks) all() []healthz.HealthChecker {
	checks := []healthz.HealthChecker{healthz.PingHealthz}
	if c.Draining != nil {
		checks = append(checks, healthz.NamedCheck(ownCheck, func(*http.Request) error {
			if c.Draining.Load() {
				return errors.New("shutting down")
			}
			return nil
		}))
	}
	return append(checks, c.List...)
}

// Relay answers /readyz and /healthz of the main port, where load balancers ask. While this process
// drains or is not ready, the response is 500 with the check name fairlead. Otherwise it is that of
// the local apiserver, sub-checks and query included. ?exclude=fairlead asks only the latter.
type Relay struct {
	Ready *Checks      // this process's own readiness
	Local http.Handler // forwards to the local apiserver
}

// ServeHTTP answers a path below /readyz or /healthz.
func (l *Relay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, below, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if slices.Contains(r.URL.Query()["exclude"], ownCheck) && below != ownCheck {
		l.Local.ServeHTTP(w, r)
		return
	}
	switch err := l.Ready.Err(r); {
	case err != nil:
		text := fmt.Sprintf("[-]%s failed: reason withheld\n%s check failed", ownCheck, name)
		http.Error(w, text, http.StatusInternalServerError)
	case below == ownCheck:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, "ok") // a client that has gone needs no response
	default:
		l.Local.ServeHTTP(w, r)
	}
}
