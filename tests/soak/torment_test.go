//go:build e2e

package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

type act struct {
	fault fault
	// group is whose requests are counted (empty: all), dose how many of them the fault lasts.
	group string
	dose  int
	// begin breaks something and end repairs it. Either may be nil.
	begin, end func(context.Context) error
	// wrong describes what has not recovered.
	wrong func() string
}

// tormentor performs one act after another. Its acts depend only on the seed.
type tormentor struct {
	name string
	rng  *rand.Rand
	// pause limits the number of requests between two acts.
	pause int
	// draw makes the next act, or returns nil if the drawn one does not apply now.
	draw func(*rand.Rand) *act
}

// tormentors returns all: two for backends, so that their faults overlap.
func (w *world) tormentors() []tormentor {
	all := []tormentor{
		{name: "backend", pause: 150, draw: w.drawBackend},
		{name: "backend", pause: 150, draw: w.drawBackend},
		{name: "registry", pause: 300, draw: w.drawRegistry},
		{name: "plane", pause: 2000, draw: w.drawPlane},
		{name: "door", pause: 1500, draw: w.drawDoor},
	}
	for i := range all {
		all[i].rng = rand.New(rand.NewPCG(*seed, uint64(1+i)))
	}
	return all
}

// torment runs the tormentors for the time of the soak, and returns when each has ended its act.
func (w *world) torment(ctx context.Context, l *load) {
	over, cancel := context.WithTimeout(ctx, time.Duration(*minutes*float64(time.Minute)))
	defer cancel()
	var all sync.WaitGroup
	for _, t := range w.tormentors() {
		all.Go(func() {
			for over.Err() == nil {
				pause := t.rng.IntN(t.pause)
				if a := t.draw(t.rng); a != nil {
					l.dose(over, "", pause)
					w.play(ctx, l, t.name, a)
				}
			}
		})
	}
	all.Wait()
}

// play performs an act. An act that fails violates an invariant.
func (w *world) play(ctx context.Context, l *load, who string, a *act) {
	what := a.fault.Kind + " " + a.fault.Target
	window := w.checker.open(a.fault)
	defer window.close()
	w.journal.Info("begin", "who", who, "fault", a.fault, "dose", a.dose)
	var err error
	if a.begin != nil {
		err = a.begin(ctx)
	}
	if err == nil {
		l.dose(ctx, a.group, a.dose)
	}
	w.journal.Info("repair", "what", what)
	if a.end != nil {
		err = errors.Join(err, a.end(ctx))
	}
	if ctx.Err() != nil {
		return
	}
	w.checker.must(converges, err == nil, "%s: %v", what, err)
	if a.wrong != nil {
		w.await(ctx, what, a.wrong)
	}
	w.journal.Info("end", "what", what)
}
