package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const namedForItself = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.loop.example.com}
spec: {group: loop.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 100, insecureSkipTLSVerify: true, service: {namespace: x, name: loop, port: %s}}
---
apiVersion: v1
kind: Service
metadata: {namespace: x, name: loop}
spec: {type: ExternalName, externalName: localhost, ports: [{port: %[1]s}]}
`

// aloneDoor builds all that serve builds where there is no local apiserver, short of serving.
func aloneDoor(t *testing.T, change func(*options)) (*door, *pki.CA) {
	t.Helper()
	dir := t.TempDir()
	ca := pki.NewCA("ca")
	cert, key, err := ca.Issue(pki.Leaf{CommonName: "front", Names: []string{"localhost"}}).WriteFiles(dir, "front")
	if err != nil {
		t.Fatal(err)
	}
	o := &options{}
	o.addFlags(pflag.NewFlagSet("serve", pflag.ContinueOnError))
	manifests := filepath.Join(dir, "manifests")
	must.Do(t, os.Mkdir(manifests, 0o700))
	o.registry, o.bindAddress, o.securePort, o.adminPort = "dir:"+manifests, "127.0.0.1", 0, 0
	o.tlsCert, o.tlsKey, o.proxyCert, o.proxyKey = cert, key, cert, key
	change(o)
	d := &door{o: o, log: slog.New(slog.DiscardHandler), metrics: prometheus.NewRegistry()}
	t.Cleanup(d.closeListeners)
	must.Do(t, d.build(t.Context()))
	return d, ca
}

// A name that leads where nobody may dial is not probed there either: a probe carries our
// certificate and asks as system:masters. Here it leads to Fairlead itself.
func TestProbesAskTheCheckOfLiveTraffic(t *testing.T) {
	d, _ := aloneDoor(t, func(*options) {})
	_, port, err := net.SplitHostPort(d.frontListener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, os.WriteFile(filepath.Join(d.o.directory(), "loop.yaml"), fmt.Appendf(nil, namedForItself, port), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, run := range []func(context.Context) error{d.registry.Run, d.prober.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	deadline := time.After(20 * time.Second)
	for {
		table := d.registry.Table()
		for _, e := range table.Entries() {
			if e.Name != "v1.loop.example.com" || len(e.Endpoints) == 0 || e.Endpoints[0].Health == registry.Unprobed {
				continue
			}
			if e.Endpoints[0].Health != registry.Unhealthy || !strings.Contains(e.Endpoints[0].Message, "is this server itself") {
				t.Errorf("the probe found %+v", e.Endpoints[0])
			}
			return
		}
		select {
		case <-table.Superseded():
		case <-deadline:
			t.Fatalf("no probe has told anything: %+v", table.Entries())
		}
	}
}
