//go:build e2e

package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
)

// ill is a way to break sites.
type ill struct {
	name  string
	fault extension.Fault
	// late is how writes end: executed, and then not answered.
	late int32
	// lies says that answers are invented. It applies only to reads: no proxy can distinguish a lie
	// from an acknowledgement.
	lies bool
	// connections marks a fault of connections, to which path and method do not apply.
	connections bool
}

func ills() []ill {
	of := func(k extension.Kind) ill { return ill{name: string(k), fault: extension.Fault{Kind: k}} }
	conn := func(k extension.Kind) ill {
		return ill{name: string(k), fault: extension.Fault{Kind: k}, connections: true}
	}
	lie := func(k extension.Kind, size int64) ill {
		return ill{name: string(k), fault: extension.Fault{Kind: k, Size: size, Delay: 20 * time.Millisecond}, lies: true}
	}
	return []ill{
		conn(extension.Dead), conn(extension.Dead), conn(extension.Refuse), conn(extension.HangConnect), conn(extension.Freeze), conn(extension.Freeze),
		conn(extension.WrongCA), conn(extension.WrongName), conn(extension.NoNames), conn(extension.Expired), conn(extension.NotYetValid), conn(extension.SHA1),
		conn(extension.HTTP1Only), conn(extension.HTTP2Only),
		of(extension.Hang), of(extension.HangBody), of(extension.Reset), of(extension.ResetBody), of(extension.ResetConn), of(extension.GoAway),
		of(extension.GoAwayUnprocessed), of(extension.Redirect),
		{name: "headers", fault: extension.Fault{Kind: extension.EndlessHeaders, Size: 4 << 20}},
		{name: "informational", fault: extension.Fault{Kind: extension.InformationalFlood, Size: 200}},
		{name: "slow", fault: extension.Fault{Kind: extension.Slow, Delay: 300 * time.Millisecond}},
		{name: "status", fault: extension.Fault{Kind: extension.Status, Code: http.StatusServiceUnavailable}},
		lie(extension.SlowBody, 1000), lie(extension.HugeBody, 2<<20), lie(extension.Garbage, 0), lie(extension.ShortBody, 5000), lie(extension.LongBody, 5000),
		lie(extension.BodyAfterReset, 0), lie(extension.Unasked101, 0),
		{name: "executed, then reset", late: lateReset}, {name: "executed, then silent", late: lateHang}, {name: "executed, then reset", late: lateReset},
	}
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
	return &act{
		fault: fault{Kind: "backend: " + i.name + share, Target: strings.Join(names, " "), Scopes: []string{g.scope()}, Lies: i.lies},
		group: g.name, dose: dose,
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
		wrong: func() string { return w.groupWrong(g) },
	}
}

// claim returns the sites of mask that are not broken already, and marks them broken.
func (w *world) claim(g *group, other bool, mask int) []*site {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := g.services[g.current]
	if other {
		s = g.services[1-g.current]
	}
	var sites []*site
	for n, x := range s.sites {
		if mask>>n&1 == 1 && !x.broken {
			x.broken = true
			sites = append(sites, x)
		}
	}
	return sites
}

// fall breaks sites, or repairs them if i is zero.
func fall(sites []*site, i ill) error {
	var errs []error
	for _, x := range sites {
		x.late.Store(i.late)
		faults := []extension.Fault{i.fault}
		if i.fault.Kind == "" {
			faults = nil
		}
		errs = append(errs, x.server.Set(faults...))
	}
	return errors.Join(errs...)
}
