//go:build e2e

package soak

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

type act struct {
	fault fault
	// group is whose requests are counted (empty: all), dose how many of them the fault lasts.
	group string
	dose  int
	// begin breaks something and end repairs it, unless it is nil.
	begin, end func(context.Context) error
	part       string // part of the world must recover, see world.wrong
}

// torment runs the tormentors for the time of the soak, and returns when each has ended its act.
// Each performs one act after another. Its acts depend only on the seed.
func (w *world) torment(ctx context.Context) {
	over, cancel := context.WithTimeout(ctx, time.Duration(*minutes*float64(time.Minute)))
	defer cancel()
	var all sync.WaitGroup
	for i, t := range []struct {
		pause int // limits the number of requests between two acts
		draw  func(*rand.Rand) *act
	}{{150, w.drawBackend}, {150, w.drawBackend}, {300, w.drawRegistry}, {2000, w.drawPlane}, {1500, w.drawDoor}} { // two for backends, so that their faults overlap
		rng := rand.New(rand.NewPCG(*seed, uint64(1+i)))
		all.Go(func() {
			for over.Err() == nil {
				pause := rng.IntN(t.pause)
				if a := t.draw(rng); a != nil {
					w.dose(over, "", pause)
					w.play(ctx, a)
				}
			}
		})
	}
	all.Wait()
}

// play performs an act. An act that fails violates an invariant.
func (w *world) play(ctx context.Context, a *act) {
	what := a.fault.Kind + " " + a.fault.Target
	defer w.checker.open(a.fault)()
	w.journal.Info("begin", "fault", a.fault, "dose", a.dose)
	err := a.begin(ctx)
	if err == nil {
		w.dose(ctx, a.group, a.dose)
	}
	w.journal.Info("repair", "what", what)
	if a.end != nil {
		err = errors.Join(err, a.end(ctx))
	}
	if ctx.Err() != nil {
		return
	}
	w.checker.must(converges, err == nil, "%s: %v", what, err)
	w.await(ctx, what, a.part)
	w.journal.Info("end", "what", what)
}

// ill is a way to break sites.
type ill struct {
	name  string // empty: the fault's
	fault extension.Fault
	late  int32 // how writes end: executed, and then not answered
	// lies says that answers are invented. It applies only to reads: no proxy can distinguish a lie
	// from an acknowledgement.
	lies        bool
	connections bool // marks a fault of connections, to which path and method do not apply
}

// ills returns all. The most frequent ones in life are in it twice.
func ills() (all []ill) {
	for _, k := range []extension.Kind{
		extension.Dead, extension.Dead, extension.Refuse, extension.HangConnect, extension.Freeze, extension.Freeze,
		extension.WrongCA, extension.WrongName, extension.NoNames, extension.Expired, extension.NotYetValid, extension.SHA1, extension.HTTP1Only, extension.HTTP2Only,
	} {
		all = append(all, ill{fault: extension.Fault{Kind: k}, connections: true})
	}
	for _, f := range []extension.Fault{
		{Kind: extension.Hang}, {Kind: extension.HangBody}, {Kind: extension.Reset}, {Kind: extension.ResetBody}, {Kind: extension.ResetConn},
		{Kind: extension.GoAway}, {Kind: extension.GoAwayUnprocessed}, {Kind: extension.Redirect},
		{Kind: extension.EndlessHeaders, Size: 4 << 20}, {Kind: extension.InformationalFlood, Size: 200},
		{Kind: extension.Slow, Delay: 300 * time.Millisecond}, {Kind: extension.Status, Code: http.StatusServiceUnavailable},
	} {
		all = append(all, ill{fault: f})
	}
	for _, f := range []extension.Fault{
		{Kind: extension.SlowBody, Size: 1000, Delay: 20 * time.Millisecond}, {Kind: extension.HugeBody, Size: 2 << 20}, {Kind: extension.Garbage},
		{Kind: extension.ShortBody, Size: 5000}, {Kind: extension.LongBody, Size: 5000}, {Kind: extension.BodyAfterReset}, {Kind: extension.Unasked101},
	} {
		all = append(all, ill{fault: f, lies: true})
	}
	reset := ill{name: "executed, then reset", late: lateReset}
	return append(all, reset, reset, ill{name: "executed, then silent", late: lateHang})
}

// drawBackend breaks some of the three sites of a Service, usually of the one in use.
func (w *world) drawBackend(rng *rand.Rand) *act {
	all := ills()
	i := all[rng.IntN(len(all))]
	g := w.groups[rng.IntN(len(w.groups))]
	other, mask, every, shallow, dose := rng.IntN(5) == 0, 1+rng.IntN(7), 1+rng.IntN(3), rng.IntN(2) == 0, 20+rng.IntN(400)
	if !i.connections && i.late == lateNot {
		i.fault.Every = every
		if shallow { // probes do not notice it
			i.fault.Path = g.widgets()
		}
		if i.lies {
			i.fault.Method = http.MethodGet
		}
	}
	sites := w.claim(g, other, mask)
	if len(sites) == 0 {
		return nil
	}
	var names []string
	for _, x := range sites {
		names = append(names, x.name)
	}
	share := ", some"
	if len(sites) == len(g.services[0].sites) {
		share = ", all"
	}
	kind := "backend: " + cmp.Or(i.name, string(i.fault.Kind)) + share
	return &act{
		fault: fault{Kind: kind, Target: strings.Join(names, " "), Scopes: []string{g.scope()}, Lies: i.lies},
		group: g.name, dose: dose, part: g.name,
		begin: func(context.Context) error { return fall(sites, i) },
		end: func(context.Context) error {
			err := fall(sites, ill{})
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, x := range sites {
				x.broken = false
			}
			return err
		},
	}
}

// claim returns the sites of mask that are not broken already, and marks them broken.
func (w *world) claim(g *group, other bool, mask int) (sites []*site) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := g.services[g.current]
	if other {
		s = g.services[1-g.current]
	}
	for n, x := range s.sites {
		if mask>>n&1 == 1 && !x.broken {
			x.broken = true
			sites = append(sites, x)
		}
	}
	return sites
}

// fall breaks sites, or repairs them if i is zero.
func fall(sites []*site, i ill) (err error) {
	var faults []extension.Fault
	if i.fault.Kind != "" {
		faults = append(faults, i.fault)
	}
	for _, x := range sites {
		x.late.Store(i.late)
		err = errors.Join(err, x.server.Set(faults...))
	}
	return err
}

// drawRegistry changes a group's objects, and reverts most changes. Changes that clients should not
// notice have only the scope of the watches, whose connections may have to end.
func (w *world) drawRegistry(rng *rand.Rand) *act {
	g := w.groups[rng.IntN(len(w.groups))]
	kind, number := rng.IntN(8), rng.IntN(1000)
	watches := "watch:" + g.name
	quiet, hurts := []string{watches}, []string{watches, g.scope()}
	does := func(model func()) func(context.Context) error {
		return func(ctx context.Context) error { return w.change(ctx, g, model) }
	}
	list := func(n int, listed bool) func(context.Context) error { // n of the three, beginning anywhere
		return does(func() {
			for i := range n {
				g.services[g.current].sites[(number+i)%3].listed = listed
			}
		})
	}
	refusals := []int{http.StatusNotFound, http.StatusForbidden} // the local apiserver's; 403 for callers without credentials
	a := []act{
		{fault: fault{Kind: "APIService retargeted", Scopes: hurts, Weak: true}, begin: does(func() { g.current = 1 - g.current })},
		{
			fault: fault{Kind: "APIService deleted", Scopes: append(hurts, "discovery"), Refusals: refusals},
			begin: does(func() { g.exists = false }), end: does(func() { g.exists = true }),
		},
		{fault: fault{Kind: "priority changed", Scopes: quiet, Weak: true}, begin: does(func() { g.priority = 500 + number })},
		{fault: fault{Kind: "endpoints removed", Scopes: quiet, Weak: true}, begin: list(1+number%2, false), end: list(3, true)},
		{fault: fault{Kind: "CA rotated", Scopes: quiet, Weak: true}, begin: func(ctx context.Context) error { return w.rotate(ctx, g) }},
		{
			fault: fault{Kind: "bundle of a stranger", Scopes: hurts, Weak: true},
			begin: does(func() { g.bundle = []*pki.CA{pki.NewCA("stranger")} }), end: does(func() { g.bundle = []*pki.CA{g.ca} }),
		},
		{
			fault: fault{Kind: "maintenance", Scopes: hurts},
			begin: does(func() { g.maintenance = true }), end: does(func() { g.maintenance = false }),
		},
	}[max(kind-1, 0)] // the first one twice as often
	a.fault.Kind, a.fault.Target = "registry: "+a.fault.Kind, g.name
	a.group, a.part, a.dose = g.name, g.name, 20+rng.IntN(200)
	return &a
}

// signal returns an act's begin or end.
func signal(p *cluster.Part, s syscall.Signal) func(context.Context) error {
	return func(context.Context) error { return p.Signal(s) }
}

func kill(p *cluster.Part) func(context.Context) error {
	return func(context.Context) error { p.Kill(); return nil }
}

// drawPlane kills or freezes a kube-apiserver or etcd. Everything depends on them: they authenticate tokens and
// authorize requests. What is frozen keeps its connections and answers nothing.
func (w *world) drawPlane(rng *rand.Rand) *act {
	kind, n := rng.IntN(5), rng.IntN(len(w.APIServers))
	a := &act{fault: fault{Scopes: []string{plane, "discovery"}}, dose: 100 + rng.IntN(500), part: plane}
	part, name := w.APIServers[n], "plane: kube-apiserver"
	if kind > 2 {
		part, name = w.Etcd, "plane: etcd"
	}
	a.fault.Kind, a.fault.Target = name+" killed", part.Name()
	a.begin, a.end = kill(part), part.Restart
	if kind == 2 || kind == 4 {
		a.fault.Kind, a.fault.Silent = name+" stopped", true
		a.begin, a.end = signal(part, syscall.SIGSTOP), signal(part, syscall.SIGCONT)
	}
	return a
}

func (w *world) drawDoor(rng *rand.Rand) *act {
	kind := rng.IntN(8)
	d := w.doors[1]
	a := &act{fault: fault{Target: d.name}, dose: 50 + rng.IntN(300)}
	away := func(begin func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error { d.away.Store(true); return begin(ctx) }
	}
	back := func(end func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error { defer d.away.Store(false); return end(ctx) }
	}
	switch kind {
	case 0, 1, 2:
		// Clients notice nothing, except watches and HTTP/1.1 requests that cross with the end of
		// an idle connection (RFC 9112, 9.3.1).
		a.fault.Kind, a.fault.Scopes = "door: told to stop", []string{"watch:door:" + d.name, "h1:door:" + d.name}
		a.begin, a.end = away(func(context.Context) error { return d.Part.Stop(3 * time.Minute) }), back(d.Part.Restart)
	case 3, 4:
		a.fault.Kind, a.fault.Scopes = "door: killed", []string{"door:" + d.name}
		a.begin, a.end = away(kill(d.Part)), back(d.Part.Restart)
	case 5:
		a.fault.Kind, a.fault.Scopes, a.fault.Silent = "door: stopped", []string{"door:" + d.name}, true
		a.begin, a.end = away(signal(d.Part, syscall.SIGSTOP)), back(signal(d.Part, syscall.SIGCONT))
		a.dose = min(a.dose, 200)
	case 6:
		a.fault.Kind, a.fault.Target = "door: serving pairs replaced", "a b"
		a.begin = func(context.Context) (err error) {
			for _, d := range w.doors {
				name := "fairlead-" + d.name
				_, failed := w.PKI.Serving.Issue(name, cluster.Leaf{User: name, Names: []string{"127.0.0.1", "localhost"}})
				err = errors.Join(err, failed)
			}
			return err
		}
	case 7:
		// Connections with the old pair get no new streams; watches over them may end.
		a.fault.Kind, a.fault.Target = "door: proxy client pair replaced", "a b"
		a.fault.Scopes = []string{"watch:door:a", "watch:door:b"}
		a.fault.Weak = true
		a.begin = func(context.Context) error {
			_, err := w.PKI.FrontProxy.Issue("front-proxy-client", cluster.Leaf{User: "front-proxy-client"})
			return err
		}
	}
	return a
}
