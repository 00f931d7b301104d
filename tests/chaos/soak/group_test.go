//go:build e2e

package soak

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// group is an API group with one version, v1, and two Services of which its APIService points to one.
type group struct {
	name     string
	services [2]service

	// The fields below are what the cluster has been given, or is being given right now. world.mu guards them.
	exists      bool // the APIService
	current     int  // the Service that it points to
	priority    int
	maintenance bool
	bundle      []*pki.CA
	ca          *pki.CA // signs the sites' certificates
	rotations   int
}

type service struct {
	name  string
	sites []*site
}

// scope is the scope of requests that depend on the group's backends.
func (g *group) scope() string { return "group:" + g.name }

func (g *group) widgets() string {
	return "/apis/" + g.name + "/v1/namespaces/" + namespace + "/widgets"
}

func (w *world) raiseGroup(ctx context.Context, number int, name string) *group {
	g := &group{name: name + ".soak.example.com", priority: 1000, ca: pki.NewCA(name + "-ca-0")}
	g.bundle = []*pki.CA{g.ca}
	for i := range g.services {
		s := service{name: fmt.Sprintf("%s-%d", name, i)}
		for n := range 3 {
			s.sites = append(s.sites, w.newSite(g, s.name, fmt.Sprintf("10.79.%d.%d", 1+number, 10*(i+1)+n)))
		}
		g.services[i] = s
		// Headless: kube-apiserver's own aggregator cannot dial it, so all that sites receive comes through a door.
		w.create(ctx, "/api/v1/namespaces/"+namespace+"/services/"+s.name,
			fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {clusterIP: None, ports: [{name: https, port: 443}]}}`, s.name))
		must.Do(w.t, w.pushEndpoints(ctx, s))
	}
	must.Do(w.t, w.change(ctx, g, func() { g.exists = true }))
	return g
}

func (w *world) pushEndpoints(ctx context.Context, s service) error {
	var listed []string
	w.mu.Lock()
	for _, x := range s.sites {
		if x.listed {
			listed = append(listed, fmt.Sprintf("{addresses: [%s], conditions: {ready: true}}", x.ip))
		}
	}
	w.mu.Unlock()
	return w.apply(ctx, "/apis/discovery.k8s.io/v1/namespaces/"+namespace+"/endpointslices/"+s.name, fmt.Sprintf(`
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}},
 addressType: IPv4, ports: [{name: https, port: %[2]d}], endpoints: [%[3]s]}`, s.name, sitePort, strings.Join(listed, ", ")))
}

// push gives the cluster the model of a group.
func (w *world) push(ctx context.Context, g *group) error {
	w.mu.Lock()
	annotations, s := "", g.services[g.current]
	if g.maintenance {
		annotations = "fairlead.dev/maintenance: a soak"
	}
	manifest := fmt.Sprintf(`
{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.%[1]s, annotations: {%[2]s}},
 spec: {group: %[1]s, version: v1, groupPriorityMinimum: %[3]d, versionPriority: 15, caBundle: %[4]s, service: {namespace: %[5]s, name: %[6]s, port: 443}}}`,
		g.name, annotations, g.priority, base64.StdEncoding.EncodeToString(pki.Bundle(g.bundle...)), namespace, s.name)
	if !g.exists {
		manifest = ""
	}
	w.mu.Unlock()
	return errors.Join(w.pushEndpoints(ctx, s), w.apply(ctx, "/apis/apiregistration.k8s.io/v1/apiservices/v1."+g.name, manifest))
}

// change changes the model of a group, and then the cluster. Sites that may answer from now on are allowed before.
// Others are forbidden when both doors have read the change: requests that begin later may not use anything older.
func (w *world) change(ctx context.Context, g *group, model func()) error {
	w.mu.Lock()
	before := g.servingLocked()
	model()
	after := g.servingLocked()
	w.mu.Unlock()
	for _, name := range after {
		w.checker.may(g.name, name, true)
	}
	if err := w.push(ctx, g); err != nil {
		return err
	}
	gone := slices.DeleteFunc(before, func(name string) bool { return slices.Contains(after, name) })
	if len(gone) == 0 {
		return nil
	}
	if err := w.known(ctx, g); err != nil {
		return err
	}
	for _, name := range gone {
		w.checker.may(g.name, name, false)
	}
	return nil
}

// servingLocked returns the sites that may answer for a group.
func (g *group) servingLocked() (all []string) {
	for _, x := range g.services[g.current].sites {
		if g.exists && x.listed {
			all = append(all, x.name)
		}
	}
	return all
}

// known waits until both doors have read the model of a group.
func (w *world) known(ctx context.Context, g *group) error {
	err := wait.PollUntilContextTimeout(ctx, look, 3*time.Minute, true, func(ctx context.Context) (bool, error) { return w.wrong(ctx, g.name) == "", nil })
	if err != nil {
		return fmt.Errorf("waiting until %s is known everywhere: %w", g.name, err)
	}
	return nil
}

// rotate moves a group to a new CA step by step: trusted with the old one, then used, then trusted alone.
func (w *world) rotate(ctx context.Context, g *group) error {
	w.mu.Lock()
	g.rotations++
	fresh := pki.NewCA(fmt.Sprintf("%s-ca-%d", g.name, g.rotations))
	w.mu.Unlock()
	if err := w.change(ctx, g, func() { g.bundle = []*pki.CA{g.ca, fresh} }); err != nil {
		return err
	}
	if err := w.known(ctx, g); err != nil {
		return err
	}
	for _, s := range g.services {
		for _, x := range s.sites {
			x.server.SetPair(fresh.Issue(pki.Leaf{CommonName: "extension", Names: x.names}))
		}
	}
	return w.change(ctx, g, func() { g.ca, g.bundle = fresh, []*pki.CA{fresh} })
}

const (
	look = 50 * time.Millisecond // the interval of polls for convergence
	// patience is how many polls convergence may take: 30 s while the world is undisturbed and the
	// machine runs. Probes of what is down are 5 s apart and take 5 s at most, watches of a control
	// plane that was down are retried every few seconds, and other soaks may run on this machine.
	patience = 600
)

const plane = "plane" // wrong's name for the kube-apiservers

// await waits until nothing is wrong with a part of the world, and records how long that took. It counts polls instead
// of time, and only while the world can converge: with a control plane, and both doors.
func (w *world) await(ctx context.Context, what, part string) {
	begun := time.Now()
	for n := 0; ctx.Err() == nil; pause(ctx, look) {
		missing := w.wrong(ctx, part)
		if missing == "" || n > patience {
			took := min(time.Since(begun), time.Duration(n+1)*look)
			w.journal.Info("converged", "what", what, "milliseconds", took.Milliseconds(), "missing", missing)
			w.checker.converged(what, took, missing == "", missing)
			return
		}
		if (part == plane || !w.checker.disturbed(plane)) && !w.doors[0].away.Load() && !w.doors[1].away.Load() {
			n++
		}
	}
}

// wrong describes what a door does not show as expected of a part of the world, or returns "". The
// part is a group, the plane, or everything ("").
func (w *world) wrong(ctx context.Context, part string) string {
	for _, d := range w.doors {
		if d.away.Load() {
			return "door " + d.name + " is being replaced"
		}
		status := new(answer.Status)
		text, err := ask.Get(ctx, d.admin, d.Admin.URL+"/status")
		if err == nil {
			err = json.Unmarshal([]byte(text), status)
		}
		if err != nil {
			return fmt.Sprintf("door %s: %v", d.name, err)
		}
		ill := slices.ContainsFunc(status.LocalServers, func(e answer.Endpoint) bool { return e.Health != "healthy" })
		if (part == "" || part == plane) && (ill || len(status.LocalServers) != len(w.APIServers)) {
			return fmt.Sprintf("door %s: of its kube-apiservers: %+v", d.name, status.LocalServers)
		}
		for _, g := range w.groups {
			if part != "" && part != g.name {
				continue
			}
			w.mu.Lock()
			want := g.viewLocked()
			w.mu.Unlock()
			if diff := cmp.Diff(want, g.shown(status, want)); diff != "" {
				return "door " + d.name + ": " + diff
			}
		}
	}
	return ""
}

// The verdict is compared if an endpoint can be healthy, the health of an endpoint unless it is broken on purpose.
const available, broken = "verdict True", " is broken"

// viewLocked returns what a door should show of the group.
func (g *group) viewLocked() (lines []string) {
	if !g.exists {
		return nil
	}
	s := g.services[g.current]
	lines = append(lines, fmt.Sprintf("service %s/%s:443, priority %d, maintenance %t", namespace, s.name, g.priority, g.maintenance))
	for _, ca := range g.bundle {
		lines = append(lines, "trusts "+ca.Certificate.Subject.CommonName)
	}
	for _, x := range s.sites {
		switch {
		case x.listed && x.broken:
			lines = append(lines, x.address()+broken)
		case x.listed && g.maintenance:
			lines = append(lines, x.address()+" healthy")
		case x.listed:
			lines = append(lines, x.address()+" healthy", available)
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// shown returns what a door shows of the group, without what want leaves open.
func (g *group) shown(s *answer.Status, want []string) (lines []string) {
	for _, a := range s.APIServices {
		if a.Name != "v1."+g.name {
			continue
		}
		lines = append(lines, fmt.Sprintf("service %s, priority %d, maintenance %t", a.Service, a.GroupPriority, a.Maintenance != ""))
		if a.Trust != nil {
			for _, c := range a.Trust.CAs {
				lines = append(lines, "trusts "+c.Subject)
			}
		}
		for _, e := range a.Endpoints {
			line := e.Address + " " + e.Health
			if slices.Contains(want, e.Address+broken) {
				line = e.Address + broken
			}
			lines = append(lines, line)
		}
		if slices.Contains(want, available) {
			lines = append(lines, "verdict "+string(a.Verdict.Status))
		}
	}
	slices.Sort(lines)
	return lines
}
