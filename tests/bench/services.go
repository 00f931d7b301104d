package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

const (
	// settling is until the first probes and documents are complete, and garbage, buffers and memory are released.
	settling    = 25 * time.Second
	resting     = 30 * time.Second // three rounds of probes at the default interval
	perEndpoint = 5                // the number of APIServices per endpoint. Each endpoint has its own Service.
)

// idleness measures what Fairlead costs without requests. APIServices come from a folder,
// because kube-apiserver's own aggregator would use up the machine for probes.
func idleness(ctx context.Context, w *world) {
	for _, n := range []int{0, 10, 1000, perEndpoint * addresses} {
		if n > 1000 && !w.o.full {
			continue
		}
		endpoints := make([]string, n/perEndpoint)
		for i := range endpoints {
			endpoints[i] = addressOf(w.backend, i)
		}
		p := w.fromFolder(ctx, fmt.Sprintf("rest-%d", n), n, endpoints)
		for range min(w.o.rounds, 3) {
			w.r.add("rest", fmt.Sprintf("%d APIServices", n), w.rested(ctx, p, n))
		}
		p.part.Kill()
	}
}

// rested restarts a Fairlead, waits until it is idle, and observes it.
func (w *world) rested(ctx context.Context, p *peer, n int) (s sample) {
	p.part.Kill()
	try.Do(os.Truncate(p.part.LogFile(), 0)) // available reads it
	began := time.Now()
	try.Do(p.part.Restart(ctx))
	w.available(ctx, p, n)
	s.Available = time.Since(began).Seconds()
	pause(ctx, settling)
	began = time.Now()
	before, woken := scheduled(p.part.PID())
	pause(ctx, resting)
	took := time.Since(began).Seconds()
	after, wakes := scheduled(p.part.PID())
	if w.o.profile {
		w.keep(ctx, p, "/debug/pprof/profile?seconds=20", fmt.Sprintf("rest-%d", n)) // two rounds
	}
	s.Share, s.Wakes, s.Resident = 100*(after-before).Seconds()/took, float64(wakes-woken)/took, p.resident(all)/(1<<10)
	return s
}

// available waits until n of the bench's APIServices are available according to a Fairlead's log: its metrics page
// costs as much as a start. Each has one endpoint, whose lines are not delayed as those about availability are.
func (w *world) available(ctx context.Context, p *peer, n int) {
	const patience = 5 * time.Minute // 10,000 needed one minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	changed := regexp.MustCompile(`msg="endpoint is (\w+)" apiservice=(\S*` + group + `) `)
	for up := map[string]bool{}; ; pause(ctx, time.Second/2) {
		clear(up)
		for _, m := range changed.FindAllStringSubmatch(string(try.Get(os.ReadFile(p.part.LogFile()))), -1) {
			if up[m[2]] = true; m[1] == "unhealthy" {
				delete(up, m[2])
			}
		}
		if len(up) >= n {
			return
		}
	}
}

// groupOf returns the i-th group; the first is the one of every Fairlead.
func groupOf(i int) string {
	if i == 0 {
		return group
	}
	return fmt.Sprintf("g%d.%s", i, group)
}

// fromFolder starts a Fairlead with n APIServices, without waiting for them. They use the addresses
// in turn; each address has its own Service.
func (w *world) fromFolder(ctx context.Context, name string, n int, addresses []string) *peer {
	dir := filepath.Join(w.Dir(), name)
	try.Do(os.MkdirAll(dir, 0o750))
	ca := base64.StdEncoding.EncodeToString(try.Get(os.ReadFile(w.PKI.Serving.CertFile)))
	manifests := make([]string, n)
	for i := range manifests {
		service := i % len(addresses)
		host, port, _ := strings.Cut(addresses[service], ":")
		if i == service {
			manifests[i] = fmt.Sprintf(serviceManifest, service, host, port)
		}
		manifests[i] += fmt.Sprintf(apiServiceManifest, groupOf(i), service, port, ca)
	}
	const perFile = 1000 // 2 MB with a Service each; Fairlead's limit is 4 MB
	file := 0
	for some := range slices.Chunk(manifests, perFile) {
		try.Do(os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", file)), []byte(strings.Join(some, "")), 0o600))
		file++
	}
	return w.launch(ctx, name, "--registry=dir:"+dir)
}

const serviceManifest = `---
apiVersion: v1
kind: Service
metadata: {name: extension-%[1]d, namespace: bench}
spec: {clusterIP: None, ports: [{port: %[3]s, targetPort: %[3]s}]}
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
metadata: {name: v1.%[1]s, annotations: {fairlead.dev/tls-server-name: localhost}}
spec:
  group: %[1]s
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 100
  caBundle: %[4]s
  service: {namespace: bench, name: extension-%[2]d, port: %[3]s}
`
