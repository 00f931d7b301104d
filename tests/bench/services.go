package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
)

// services is how cost grows with the number of APIServices. They come from a folder, because
// kube-apiserver's own aggregator would spend the machine on probing them; requests go to all of
// them in turn.
func services(o *options) scenario {
	const name = "apiservices"
	return scenario{name: name, about: fmt.Sprintf("GET 1 KB, 8 × 8, over 1 … %d APIServices", o.services), run: func(ctx context.Context, w *world, o *options, r *results) error {
		for n := 1; n <= o.services; n = max(10*n, o.least) {
			if err := w.overServices(ctx, o, r, name, n); err != nil {
				return fmt.Errorf("with %d: %w", n, err)
			}
		}
		return nil
	}}
}

func (w *world) overServices(ctx context.Context, o *options, r *results, name string, n int) error {
	dir := filepath.Join(w.Dir(), fmt.Sprintf("manifests-%d", n))
	probes := fmt.Sprintf(", fairlead.dev/probe-interval: %s, fairlead.dev/ping-timeout: 5m", o.probes)
	if err := w.writeManifests(dir, n, []string{w.backend}, probes); err != nil {
		return err
	}
	// What a miss costs is kube-apiserver's matter: with the default of 10 s, 10,000 APIServices in
	// use are 1,000 reviews a second for each user.
	p, err := w.another(ctx, fmt.Sprintf("fairlead-%d", n), append(hits(), "--registry=dir:"+dir)...)
	if err != nil {
		return err
	}
	defer p.part.Kill()
	s := gets(8, 8)
	paths := make([]string, n)
	for i := range paths {
		paths[i] = fmt.Sprintf("/apis/%s/v1/namespaces/default/objects/one", groupOf(i))
	}
	s.next = func(conn, i int) load.Request {
		return load.Request{Path: paths[(conn*n/s.conns+i)%n], Token: token(0)}
	}
	if err := w.steady(ctx, p, paths); err != nil {
		return err
	}
	counted := *p
	counted.front = nil // not its allocations: Fairlead's page of metrics takes a second then, and leaves its garbage to what is measured
	for round := range o.rounds {
		idle, err := idleFor(ctx, o.duration, p)
		if err != nil {
			return err
		}
		m, err := w.measure(ctx, o, &counted, s)
		if err != nil {
			return err
		}
		r.add(name+"-with-probes", fmt.Sprintf("%d", n), round, m)
		m.CPU = max(0, m.CPU-idle/m.Rate) // probes go on without requests, and are not theirs
		r.add(name, fmt.Sprintf("%d", n), round, m)
		r.add(name+"-idle", fmt.Sprintf("%d", n), round, sample{CPU: idle})
	}
	if o.profile {
		return w.profile(ctx, o, p, fmt.Sprintf("%s-%d", name, n), s)
	}
	return nil
}

// steady waits until a Fairlead of many APIServices has nothing left of its start: every backend
// was probed and found available, everything was asked for (which finds out what its backend
// speaks, has decisions cached and connections dialled), who may share connections does, and
// everything was asked for again.
func (w *world) steady(ctx context.Context, p *peer, paths []string) error {
	if err := w.available(ctx, p, len(paths)); err != nil {
		return err
	}
	for range 2 {
		s := gets(1, 16)
		s.next = func(_, i int) load.Request { return load.Request{Path: paths[i%len(paths)], Token: token(0)} }
		l, err := load.Start(ctx, w.config(p, s))
		if err != nil {
			return err
		}
		if err := errors.Join(l.WaitDone(ctx, int64(len(paths)+s.streams)), l.Close()); err != nil {
			return err
		}
		const join = 2 * time.Second // Fairlead looks once a second who may share
		if err := pause(ctx, join); err != nil {
			return err
		}
	}
	return nil
}

// available waits until n APIServices are.
func (w *world) available(ctx context.Context, p *peer, n int) error {
	const patience, every = 5 * time.Minute, 3 * time.Second // 10,000 take one minute, and the question a second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		page, err := w.admin(ctx, p, "/metrics")
		if err != nil {
			return fmt.Errorf("waiting for %d APIServices: %w", n, err)
		}
		ready := 0
		for line := range strings.Lines(string(page)) {
			if strings.HasPrefix(line, "aggregator_unavailable_apiservice{") && strings.HasSuffix(line, " 0\n") {
				ready++
			}
		}
		if ready >= n {
			return nil
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

// idleFor is how many µs of processor time a peer uses per second without any request.
func idleFor(ctx context.Context, d time.Duration, p *peer) (float64, error) {
	before, err := cpuOf(p.part.PID())
	if err != nil {
		return 0, err
	}
	if err := pause(ctx, d); err != nil {
		return 0, err
	}
	after, err := cpuOf(p.part.PID())
	return float64((after - before).Microseconds()) / d.Seconds(), err
}

// groupOf is the i-th group; the first is the one that every Fairlead serves.
func groupOf(i int) string {
	if i == 0 {
		return group
	}
	return fmt.Sprintf("g%d.%s", i, group)
}

// writeManifests writes n APIServices, which have the addresses in turns, each a Service of its
// own.
func (w *world) writeManifests(dir string, n int, addresses []string, annotations string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	ca, err := os.ReadFile(w.PKI.Serving.CertFile)
	if err != nil {
		return err
	}
	var b strings.Builder
	for i := range n {
		service := i % len(addresses)
		host, port, _ := strings.Cut(addresses[service], ":")
		if i == service {
			fmt.Fprintf(&b, serviceManifest, service, host, port)
		}
		fmt.Fprintf(&b, apiServiceManifest, groupOf(i), service, port, base64.StdEncoding.EncodeToString(ca), annotations)
		if (i+1)%perFile > 0 && i < n-1 {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i/perFile)), []byte(b.String()), 0o600); err != nil {
			return err
		}
		b.Reset()
	}
	return nil
}

// perFile is how many APIServices are written to one file: 2 MB with a Service each, where Fairlead
// takes 4.
const perFile = 1000

const serviceManifest = `---
apiVersion: v1
kind: Service
metadata: {name: extension-%[1]d, namespace: bench}
spec:
  clusterIP: None
  ports: [{port: %[3]s, targetPort: %[3]s}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: extension-%[1]d, namespace: bench, labels: {kubernetes.io/service-name: extension-%[1]d}}
addressType: IPv4
ports: [{port: %[3]s, protocol: TCP}]
endpoints: [{addresses: [%[2]s], conditions: {ready: true}}]
`

const apiServiceManifest = `---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.%[1]s, annotations: {fairlead.dev/tls-server-name: localhost%[5]s}}
spec:
  group: %[1]s
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 100
  caBundle: %[4]s
  service: {namespace: bench, name: extension-%[2]d, port: %[3]s}
`
