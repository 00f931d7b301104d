package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
)

// raiseStandalone starts an extension server and two Fairleads whose APIServices are in etcd, and
// returns what to try.
func raiseStandalone(ctx context.Context, c *cluster.Cluster, o options, stderr io.Writer) (string, error) {
	server, err := extension.New(extension.Config{ //nolint:contextcheck // ctx ends it
		GroupVersions: []string{"widgets.example.com/v1"}, CA: c.PKI.Serving.CA, Objects: 3,
		RequestHeaderCA: c.PKI.FrontProxy.CA.Pool(), RejectWith: http.StatusUnauthorized,
	})
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, server.Close)
	tell(stderr, "the extension server is ready")
	start, cancel := context.WithTimeout(ctx, time.Minute) // they take a second or two
	defer cancel()
	one, err := c.StartFairlead(start, cluster.Fairlead{Path: o.fairlead, Name: "fairlead-1", Port: free(o.port), AdminPort: free(o.adminPort), Registry: c.Registry(), Args: o.args})
	if err != nil {
		return "", err
	}
	two, err := c.StartFairlead(start, cluster.Fairlead{Path: o.fairlead, Name: "fairlead-2", Registry: c.Registry(), Args: o.args})
	if err != nil {
		return "", err
	}
	return describeStandalone(ctx, c, o, server, one, two)
}

// apiService is the manifest to apply. kube-aggregator's validation accepts a caBundle only
// together with a service; Fairlead does not look that up.
const apiService = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1.widgets.example.com
  annotations:
    fairlead.dev/url: %s
spec:
  group: widgets.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 100
  service: {namespace: standalone, name: widgets} # required with a caBundle, but not looked up
  caBundle: %s
`

// describeStandalone writes two kubeconfigs, a manifest and a link to kubectl, and returns what to
// try.
func describeStandalone(ctx context.Context, c *cluster.Cluster, o options, server *extension.Server, one, two *cluster.Front) (string, error) {
	kubeconfig, manifest := filepath.Join(o.dir, "kubeconfig"), filepath.Join(o.dir, "apiservice.yaml")
	if err := one.Endpoint.WriteKubeconfig(kubeconfig, c.Admin()); err != nil {
		return "", err
	}
	if err := two.Endpoint.WriteKubeconfig(kubeconfig+"-2", c.Admin()); err != nil {
		return "", err
	}
	text := fmt.Sprintf(apiService, server.URL(), base64.StdEncoding.EncodeToString(c.PKI.Serving.CA.PEM()))
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		return "", err
	}
	kubectl, err := linkKubectl(ctx, o.dir)
	return fmt.Sprintf(`
Two Fairleads keep APIServices in etcd. There is no kube-apiserver.

  front doors  %s and %s
  admin ports  %s and %s   (health, metrics)
  etcd         %s
  kubeconfig   %s   (%[6]s-2: through the other Fairlead)
  logs         %s

Try:

  export KUBECONFIG=%[6]s
  %[8]s apply -f %[9]s
  %[8]s wait --for=condition=Available apiservice/v1.widgets.example.com
  %[8]s get widgets                                   # served by the extension server
  %[8]s --kubeconfig %[6]s-2 get widgets   # through the other Fairlead
  %[8]s --kubeconfig %[6]s-2 get apiservices -w   # meanwhile delete it

Ctrl-C ends everything.
`, one.Endpoint.URL, two.Endpoint.URL, one.Admin.URL, two.Admin.URL, c.EtcdURLs()[0], kubeconfig, filepath.Join(c.Dir(), "*.log"), kubectl, manifest), err
}
