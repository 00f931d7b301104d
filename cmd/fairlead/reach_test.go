package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
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

// A name that leads where nobody may dial is not probed there either: a probe carries our
// certificate and asks as system:masters. Here it leads to Fairlead itself.
func TestProbesAskTheCheckOfLiveTraffic(t *testing.T) {
	d, _ := aloneDoor(t, func(*options) {})
	_, port, err := net.SplitHostPort(d.frontListener.Addr().String())
	must.Do(t, err)
	writeFile(t, filepath.Join(d.o.directory(), "loop.yaml"), fmt.Sprintf(namedForItself, port))
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for _, run := range []func(context.Context) error{d.registry.Run, d.prober.Run} {
		running.Go(func() { _ = run(t.Context()) })
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
