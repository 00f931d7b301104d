//go:build e2e

package directory

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/fairlead-proxy/fairlead/tests/extension"
)

// api returns the manifests of a group-version whose extension server has the address.
func api(group, version, service, address, ca string) string {
	host, port, _ := strings.Cut(address, ":")
	return fmt.Sprintf(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: %[2]s.%[1]s
spec:
  group: %[1]s
  version: %[2]s
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: %[6]s
  service:
    namespace: apps
    name: %[3]s
---
apiVersion: v1
kind: Service
metadata: {namespace: apps, name: %[3]s}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: apps, name: %[3]s-1, labels: {kubernetes.io/service-name: %[3]s}}
addressType: IPv4
ports: [{port: %[5]s}]
endpoints: [{addresses: [%[4]s]}]
`, group, version, service, host, port, ca)
}

// apiOf returns the manifests of a group-version of s.
func apiOf(s *extension.Server, group, version, service string) string {
	return api(group, version, service, s.Addr(), base64.StdEncoding.EncodeToString(s.CA.PEM()))
}
