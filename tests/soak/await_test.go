//go:build e2e

package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

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
	begun := time.Now()
	for n := 0; ctx.Err() == nil; pause(ctx, look) {
		missing := wrong()
		if missing == "" || n > patience {
			took := min(time.Since(begun), time.Duration(n+1)*look)
			w.journal.Info("converged", "what", what, "milliseconds", took.Milliseconds(), "missing", missing)
			w.checker.converged(what, took, missing == "", missing)
			return
		}
		if (strings.HasPrefix(what, "plane") || !w.checker.disturbed("plane")) && !w.doorsAway() {
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

// view is what a door should show of a group, or shows.
type view struct {
	Service     string
	Priority    int32
	Maintenance bool
	CAs         []string
	Endpoints   map[string]string // :: address → health. That of one that is broken on purpose is not compared
	Status      string            // not compared if none can be healthy
}

// wantedLocked returns what the cluster was given.
func (g *group) wantedLocked() *view {
	if !g.exists {
		return nil
	}
	s := g.services[g.current]
	v := &view{Service: namespace + "/" + s.name + ":443", Priority: g.priority, Maintenance: g.maintenance, Endpoints: map[string]string{}}
	for _, ca := range g.bundle {
		v.CAs = append(v.CAs, ca.Certificate.Subject.CommonName)
	}
	slices.Sort(v.CAs)
	for _, x := range s.sites {
		switch {
		case x.listed && x.broken:
			v.Endpoints[x.address()] = ""
		case x.listed:
			v.Endpoints[x.address()] = "healthy"
			if !g.maintenance {
				v.Status = "True"
			}
		}
	}
	return v
}

// shown returns what a status says of a group, without what want leaves open.
func (g *group) shown(s *answer.Status, want *view) *view {
	i := slices.IndexFunc(s.APIServices, func(a answer.APIService) bool { return a.Name == g.apiService() })
	switch {
	case i < 0:
		return nil
	case want == nil:
		return &view{Service: "still there"}
	}
	a := &s.APIServices[i]
	v := &view{Service: a.Service, Priority: a.GroupPriority, Maintenance: a.Maintenance != "", Endpoints: map[string]string{}}
	if a.Trust != nil {
		for _, c := range a.Trust.CAs {
			v.CAs = append(v.CAs, c.Subject)
		}
	}
	slices.Sort(v.CAs)
	for _, e := range a.Endpoints {
		if health, known := want.Endpoints[e.Address]; !known || health != "" {
			v.Endpoints[e.Address] = e.Health
		} else {
			v.Endpoints[e.Address] = ""
		}
	}
	if want.Status != "" {
		v.Status = a.Verdict.Status
	}
	return v
}

// groupWrong compares what both doors show of a group with what the cluster was given.
func (w *world) groupWrong(g *group) string {
	w.mu.Lock()
	want := g.wantedLocked()
	w.mu.Unlock()
	return w.ofDoors(func(s *answer.Status) string { return cmp.Diff(want, g.shown(s, want)) })
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
