//go:build e2e

package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

const (
	// look is the interval of polls for convergence.
	look = 50 * time.Millisecond
	// patience is how many polls convergence may take: 30 s while the world is undisturbed and the
	// machine runs. Probes of what is down are 5 s apart and take 5 s at most, watches of a control
	// plane that was down are retried every few seconds, and other soaks may run on this machine.
	patience = 600
)

// await waits until wrong returns "", and records how long that took. It counts polls instead of
// time, and only while the world can converge: with a control plane, and both doors.
func (w *world) await(ctx context.Context, what string, wrong func() string) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	begun := time.Now()
	for n := 0; ; {
		missing := wrong()
		if missing == "" {
			took := min(time.Since(begun), time.Duration(n+1)*look)
			w.journal.Write("converged", "what", what, "milliseconds", took.Milliseconds())
			w.checker.Converged(what, took, true, "")
			return
		}
		if n > patience {
			w.checker.Converged(what, time.Since(begun), false, missing)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if (strings.HasPrefix(what, "plane") || !w.checker.Disturbed("plane")) && !w.doorsAway() {
			n++
		}
	}
}

func (w *world) doorsAway() bool {
	return slices.ContainsFunc(w.doors[:], func(d *door) bool { return d.away.Load() })
}

// wrong describes the first group or door that is not as expected, or returns "".
func (w *world) wrong() string {
	if wrong := w.planeWrong(); wrong != "" {
		return wrong
	}
	for _, g := range w.groups {
		if wrong := w.groupWrong(g); wrong != "" {
			return wrong
		}
	}
	return ""
}

// groupWrong compares what both doors show of a group with what the cluster was given.
func (w *world) groupWrong(g *group) string {
	return w.ofDoors(func(s *answer.Status) string {
		i := slices.IndexFunc(s.APIServices, func(a answer.APIService) bool { return a.Name == g.apiService() })
		w.mu.Lock()
		defer w.mu.Unlock()
		if !g.exists {
			if i >= 0 {
				return g.name + " is still there"
			}
			return ""
		}
		if i < 0 {
			return g.name + " is not there"
		}
		return g.compareLocked(&s.APIServices[i])
	})
}

func (g *group) compareLocked(a *answer.APIService) string {
	current := g.services[g.current]
	if want := namespace + "/" + current.name + ":443"; a.Service != want {
		return fmt.Sprintf("%s is at %s, want %s", g.name, a.Service, want)
	}
	if a.GroupPriority != g.priority || (a.Maintenance != "") != g.maintenance {
		return fmt.Sprintf("%s has priority %d and maintenance %q, want %d and %t", g.name, a.GroupPriority, a.Maintenance, g.priority, g.maintenance)
	}
	var want, have []string
	for _, ca := range g.bundle {
		want = append(want, ca.Certificate.Subject.CommonName)
	}
	if a.Trust != nil {
		for _, c := range a.Trust.CAs {
			have = append(have, c.Subject)
		}
	}
	if slices.Sort(want); !slices.Equal(want, slices.Sorted(slices.Values(have))) {
		return fmt.Sprintf("%s trusts %q, want %q", g.name, have, want)
	}
	return g.compareSitesLocked(a, current)
}

func (g *group) compareSitesLocked(a *answer.APIService, current *service) string {
	listed, well := 0, 0
	for _, x := range current.sites {
		i := slices.IndexFunc(a.Endpoints, func(e answer.Endpoint) bool { return e.Address == x.address() })
		switch {
		case !x.listed && i >= 0:
			return x.name + " is still an endpoint"
		case !x.listed:
			continue
		case i < 0:
			return x.name + " is not an endpoint"
		case !x.broken && a.Endpoints[i].Health != "healthy":
			return fmt.Sprintf("%s is %s: %s %s", x.name, a.Endpoints[i].Health, a.Endpoints[i].Reason, a.Endpoints[i].Error)
		}
		listed++
		if !x.broken {
			well++
		}
	}
	if len(a.Endpoints) != listed {
		return fmt.Sprintf("%s has %d endpoints, want %d", g.name, len(a.Endpoints), listed)
	}
	if well > 0 && !g.maintenance && a.Verdict.Status != "True" {
		return fmt.Sprintf("%s is %s: %s %s", g.name, a.Verdict.Status, a.Verdict.Reason, a.Verdict.Message)
	}
	return ""
}

// planeWrong checks how the doors see both kube-apiservers.
func (w *world) planeWrong() string {
	return w.ofDoors(func(s *answer.Status) string {
		for _, e := range s.LocalServers {
			if e.Health != "healthy" {
				return fmt.Sprintf("kube-apiserver at %s is %s: %s", e.Address, e.Health, e.Error)
			}
		}
		if len(s.LocalServers) != len(w.APIServers) {
			return fmt.Sprintf("%d kube-apiservers are known", len(s.LocalServers))
		}
		return ""
	})
}

// everywhere is groupWrong, but fails while a door is being replaced.
func (w *world) everywhere(g *group) string {
	if w.doorsAway() {
		return "a door is being replaced"
	}
	return w.groupWrong(g)
}

// ofDoors calls f with the status of each running door.
func (w *world) ofDoors(f func(*answer.Status) string) string {
	for _, d := range w.doors {
		if d.away.Load() {
			continue
		}
		s, err := d.seen()
		if err != nil {
			return fmt.Sprintf("door %s: %v", d.name, err)
		}
		if wrong := f(s); wrong != "" {
			return "door " + d.name + ": " + wrong
		}
	}
	return ""
}
