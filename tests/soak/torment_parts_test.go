//go:build e2e

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

func (w *world) drawDoor(rng *rand.Rand) *act {
	kind := rng.IntN(8)
	d := w.doors[1]
	a := &act{fault: fault{Target: d.name}, dose: 50 + rng.IntN(300), wrong: w.wrong}
	switch kind {
	case 0, 1, 2:
		// Clients notice nothing, except watches and HTTP/1.1 requests that cross with the end of
		// an idle connection (RFC 9112, 9.3.1).
		a.fault.Kind, a.fault.Scopes = "door: told to stop", []string{"watch:door:" + d.name, "h1:door:" + d.name}
		a.begin = d.drain
		a.end = d.replace
	case 3, 4:
		a.fault.Kind, a.fault.Scopes = "door: killed", []string{"door:" + d.name}
		a.begin = func(context.Context) error { d.away.Store(true); d.Part.Kill(); return nil }
		a.end = d.replace
	case 5:
		a.fault.Kind, a.fault.Scopes, a.fault.Silent = "door: stopped", []string{"door:" + d.name}, true
		a.begin = func(context.Context) error { d.away.Store(true); return d.Part.Signal(syscall.SIGSTOP) }
		a.end = func(context.Context) error { defer d.back(); return d.Part.Signal(syscall.SIGCONT) }
		a.dose = min(a.dose, 200)
	case 6:
		a.fault.Kind, a.fault.Target = "door: serving pairs replaced", "a b"
		a.begin = func(context.Context) error { return w.replaceServing() }
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

// drain sends a door SIGTERM and waits for its exit, which must have status 0.
func (d *door) drain(ctx context.Context) error {
	d.away.Store(true)
	if err := d.Part.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-d.Part.Done():
	case <-time.After(3 * time.Minute):
		return fmt.Errorf("door %s has not ended", d.name)
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := d.Part.Err(); !strings.Contains(err.Error(), "exit status 0") {
		return fmt.Errorf("draining: %w", err)
	}
	return nil
}

func (d *door) replace(ctx context.Context) error {
	defer d.back()
	return d.Part.Restart(ctx)
}

// back lets a door be checked again, and drops its old status.
func (d *door) back() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status = nil
	d.away.Store(false)
}

// replaceServing writes new serving pairs for both doors.
func (w *world) replaceServing() error {
	var errs []error
	for _, d := range w.doors {
		name := "fairlead-" + d.name
		_, err := w.PKI.Serving.Issue(name, cluster.Leaf{User: name, Names: []string{"127.0.0.1", "localhost"}})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// drawPlane kills or freezes a kube-apiserver or etcd. Everything depends on them: they
// authenticate tokens and authorize requests. What is frozen keeps its connections and answers
// nothing.
func (w *world) drawPlane(rng *rand.Rand) *act {
	kind, n := rng.IntN(5), rng.IntN(len(w.APIServers))
	a := &act{fault: fault{Scopes: []string{"plane", "discovery"}}, dose: 100 + rng.IntN(500), wrong: w.planeWrong}
	part, name := w.APIServers[n], "plane: kube-apiserver"
	if kind > 2 {
		part, name = w.Etcd, "plane: etcd"
	}
	if kind == 2 || kind == 4 {
		a.fault.Kind, a.fault.Target, a.fault.Silent = name+" stopped", part.Name(), true
		a.begin = func(context.Context) error { return part.Signal(syscall.SIGSTOP) }
		a.end = func(context.Context) error { return part.Signal(syscall.SIGCONT) }
	} else {
		a.fault.Kind, a.fault.Target = name+" killed", part.Name()
		a.begin = func(context.Context) error { part.Kill(); return nil }
		a.end = part.Restart
	}
	return a
}
