package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
	"github.com/fairlead-proxy/fairlead/tests/try"
)

// services measures how cost grows with the number of APIServices. They come from a folder, because
// kube-apiserver's own aggregator would use up the machine for probes. Requests go to each in turn.
func services(ctx context.Context, w *world) {
	for n := 1; n <= w.o.services(); n *= 10 {
		w.overServices(ctx, n)
	}
}

func (w *world) overServices(ctx context.Context, n int) {
	dir := filepath.Join(w.Dir(), fmt.Sprintf("manifests-%d", n))
	// 10,000 at the default probe interval of 10 s may be too much for this machine.
	w.writeManifests(dir, n, []string{w.backend}, ", fairlead.dev/probe-interval: 10m, fairlead.dev/ping-timeout: 5m")
	// Cache misses are kube-apiserver's work: with the default of 10 s, 10,000 used APIServices
	// cause 1,000 reviews a second for each user.
	p := w.another(ctx, fmt.Sprintf("fairlead-%d", n), append(hits(), "--registry=dir:"+dir)...)
	defer p.part.Kill()
	c := gets(8, 8)
	paths := make([]string, n)
	for i := range paths {
		paths[i] = fmt.Sprintf("/apis/%s/v1/namespaces/default/objects/one", groupOf(i))
	}
	c.Next = func(conn, i int) load.Request {
		return load.Request{Path: paths[(conn*n/c.Connections+i)%n], Token: token(0)}
	}
	w.steady(ctx, p, paths)
	row := strconv.Itoa(n)
	for round := range w.o.rounds {
		before := p.cpu()
		pause(ctx, w.o.duration)
		idle := float64((p.cpu() - before).Microseconds()) / w.o.duration.Seconds() // µs a second, without requests
		m := try.Get(w.measure(ctx, p, c))
		w.r.add("apiservices-with-probes", row, round, m)
		m.CPU = max(0, m.CPU-idle/m.Rate) // probes also run without requests
		w.r.add("apiservices", row, round, m)
		w.r.add("apiservices-idle", row, round, sample{CPU: idle})
	}
	if w.o.profile {
		w.profile(ctx, p, "apiservices-"+row, c)
	}
}

// steady waits until a Fairlead with many APIServices has finished its start: every backend was
// probed and is available; everything was requested once (which detects the backend's protocol,
// caches decisions and dials); backends that may share connections do; and everything was requested
// again.
func (w *world) steady(ctx context.Context, p *peer, paths []string) {
	w.available(ctx, p, len(paths))
	for range 2 {
		c := gets(1, 16)
		c.Next = func(_, i int) load.Request { return load.Request{Path: paths[i%len(paths)], Token: token(0)} }
		w.ask(ctx, p, c, len(paths))
		const join = 2 * time.Second // Fairlead updates the sharing once a second
		pause(ctx, join)
	}
}

func (w *world) available(ctx context.Context, p *peer, n int) {
	const patience, every = 5 * time.Minute, 3 * time.Second // 10,000 take one minute, and the metrics page a second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	up := regexp.MustCompile(`(?m)^aggregator_unavailable_apiservice\{.* 0$`)
	for len(up.FindAll(w.admin(ctx, p, "/metrics"), -1)) < n {
		pause(ctx, every)
	}
}

// groupOf returns the i-th group; the first is the one of every Fairlead.
func groupOf(i int) string {
	if i == 0 {
		return group
	}
	return fmt.Sprintf("g%d.%s", i, group)
}

// writeManifests writes n APIServices. They use the addresses in turn; each address has its own
// Service.
func (w *world) writeManifests(dir string, n int, addresses []string, annotations string) {
	try.Do(os.MkdirAll(dir, 0o750))
	ca := try.Get(os.ReadFile(w.PKI.Serving.CertFile))
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
		try.Do(os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i/perFile)), []byte(b.String()), 0o600))
		b.Reset()
	}
}

// perFile is the number of APIServices in one file: 2 MB with a Service each. Fairlead's limit is 4
// MB.
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
