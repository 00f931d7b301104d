package main

import (
	"context"
	"math/rand/v2"
	"syscall"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/soak/check"
)

// drawPlane breaks a kube-apiserver or the store of both. Everything depends on them: who a token
// belongs to, and what its owner may, is asked there.
func (w *world) drawPlane(rng *rand.Rand) *act {
	kind, n := rng.IntN(5), rng.IntN(len(w.APIServers))
	a := &act{fault: check.Fault{Scopes: []string{"plane", "discovery"}}, dose: 100 + rng.IntN(500), wrong: w.planeWrong}
	server := w.APIServers[n]
	switch kind {
	case 0, 1:
		a.fault.Kind = "plane: kube-apiserver killed"
		w.kill(a, server)
	case 2:
		a.fault.Kind = "plane: kube-apiserver stopped"
		w.freeze(a, server)
	case 3:
		a.fault.Kind = "plane: etcd killed"
		w.kill(a, w.Etcd)
	case 4:
		a.fault.Kind = "plane: etcd stopped"
		w.freeze(a, w.Etcd)
	}
	return a
}

// kill ends a part without a word, and starts it again.
func (w *world) kill(a *act, p *cluster.Part) {
	a.fault.Target = p.Name()
	a.begin = func(context.Context) error { p.Kill(); return nil }
	a.end = p.Restart
}

// freeze has a part do nothing at all for a while: its connections stay, and nothing comes.
func (w *world) freeze(a *act, p *cluster.Part) {
	a.fault.Target, a.fault.Silent = p.Name(), true
	a.begin = func(context.Context) error { return p.Signal(syscall.SIGSTOP) }
	a.end = func(context.Context) error { return p.Signal(syscall.SIGCONT) }
}
