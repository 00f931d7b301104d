// Package manifests has manifests for tests. For the dir: registry: valid ones, and a table of
// invalid ones with the message for each.
package manifests

import (
	"encoding/base64"
	"fmt"
	"net"
	"strings"
)

const apiService = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1.a.io
spec:
  group: a.io
  version: v1
  groupPriorityMinimum: 100
  versionPriority: 100
  service:
    namespace: x
    name: svc
    port: 443
`

const service = `apiVersion: v1
kind: Service
metadata:
  namespace: x
  name: svc
spec:
  type: ClusterIP
  clusterIP: 10.96.0.1
  ports:
  - name: a
    port: 443
    protocol: TCP
`

const endpointSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: x
  name: y-1
  labels:
    kubernetes.io/service-name: svc
addressType: IPv4
ports:
- name: a
  port: 443
endpoints:
- addresses:
  - 10.0.0.1
`

const configMap = `apiVersion: v1
kind: ConfigMap
metadata:
  namespace: x
  name: svc
data:
  ca.crt: pem
`

const clusterRole = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: a:reader
rules:
- apiGroups: [a.io]
  resources: [widgets]
  verbs: [get]
- nonResourceURLs: [/apis]
  verbs: [get]
`

const clusterRoleBinding = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: a:readers
roleRef:
  kind: ClusterRole
  name: a:reader
subjects:
- kind: Group
  name: readers
- kind: ServiceAccount
  namespace: x
  name: reader
`

// Messages of apimachinery for invalid names.
const (
	subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
	label     = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)

// Invalid returns manifests of Good with one fault each, and the message for it.
func Invalid() []Case {
	tooLong := strings.Repeat("x", 1<<20+1)
	return []Case{
		{"tab", "a:\n\tb: 1\n", "bad.yaml:2: reading YAML: found character that cannot start any token"},
		{"unclosed", "a: [1\nb: 2\n", "bad.yaml:1: reading YAML: did not find expected ',' or ']'"},
		{"syntax in the second document", apiService + "---\na: 1\na: 2\n", "bad.yaml:16: reading YAML: key \"a\" already set in map"},
		{"scalar", "hello\n", "bad.yaml:1: not a Kubernetes object"},
		{"no kind", "apiVersion: v1\n", "bad.yaml:1: kind: Required value"},
		{"no version", "kind: Service\n", "bad.yaml:1: apiVersion: Required value"},
		{"unknown kind", "apiVersion: v1\nkind: Servise\n", `bad.yaml:2: kind: unknown kind or version: no kind "Servise" is registered for version "v1"`},
		{"old version", swap(apiService, "/v1", "/v1beta1"), `bad.yaml:2: kind: unknown kind or version: no kind "APIService" is registered for version "apiregistration.k8s.io/v1beta1"`},
		{"kind of no use", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", "bad.yaml:2: kind: Pod is not read from a directory: only APIService, Service, EndpointSlice, ConfigMap, Secret, ClusterRole, ClusterRoleBinding and List are"},
		{"unknown field", swap(apiService, "  versionPriority", "  versionPriorty"), "bad.yaml:9: spec.versionPriorty: unknown field"},
		{"unknown nested field", swap(apiService, "    port", "    prt"), "bad.yaml:13: spec.service.prt: unknown field"},
		{"duplicate key", swap(apiService, "    name: svc", "    name: svc\n    name: z"), `bad.yaml:13: reading YAML: key "name" already set in map`},
		{"wrong type", swap(apiService, "port: 443", "port: https"), "bad.yaml:13: spec.service.port: cannot read a string as int32"},
		{"bad base64", swap(apiService, "  service:", "  caBundle: \"***\"\n  service:"), "bad.yaml:1: illegal base64 data at input byte 0"},
		{"name", swap(apiService, "name: v1.a.io", "name: v2.a.io"), "bad.yaml:4: metadata.name: Invalid value: \"v2.a.io\": must be `spec.version+\".\"+spec.group`: \"v1.a.io\""},
		{"no name", swap(apiService, "  name: v1.a.io", "  labels: {}"), "bad.yaml:3: metadata.name: Required value: name or generateName is required"},
		{"group", swap(swap(apiService, "name: v1.a.io", "name: v1.A"), "group: a.io", "group: A"), "bad.yaml:6: spec.group: Invalid value: \"A\": " + subdomain},
		{"core group", swap(swap(apiService, "name: v1.a.io", "name: v2."), "group: a.io\n  version: v1", "version: v2"), "bad.yaml:5: spec.group: Required value: only v1 may have an empty group and it better be legacy kube"},
		{"version", swap(swap(apiService, "name: v1.a.io", "name: 1.a.io"), "version: v1", "version: \"1\""), "bad.yaml:7: spec.version: Invalid value: \"1\": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"},
		{"group priority", swap(apiService, "Minimum: 100", "Minimum: 20001"), "bad.yaml:8: spec.groupPriorityMinimum: Invalid value: 20001: must be positive and less than 20000"},
		{"no group priority", swap(apiService, "  groupPriorityMinimum: 100\n", ""), "bad.yaml:5: spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000"},
		{"version priority", swap(apiService, "versionPriority: 100", "versionPriority: -1"), "bad.yaml:9: spec.versionPriority: Invalid value: -1: must be positive and less than 1000"},
		{"no service name", swap(apiService, "    name: svc\n", ""), "bad.yaml:10: spec.service.name: Required value"},
		{"no service namespace", swap(apiService, "    namespace: x\n", ""), "bad.yaml:10: spec.service.namespace: Required value"},
		{"port", swap(apiService, "port: 443", "port: 70000"), "bad.yaml:13: spec.service.port: Invalid value: 70000: port is not valid: must be between 1 and 65535, inclusive"},
		{"local with bundle", swap(apiService, "  service:\n    namespace: x\n    name: svc\n    port: 443\n", "  caBundle: eA==\n"), "bad.yaml:10: spec.caBundle: Invalid value: \"1 bytes\": local APIServices may not have a caBundle"},
		{"local and insecure", swap(apiService, "  service:\n    namespace: x\n    name: svc\n    port: 443\n", "  insecureSkipTLSVerify: true\n"), "bad.yaml:10: spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify"},
		{"bundle and insecure", apiService + "  caBundle: eA==\n  insecureSkipTLSVerify: true\n", "bad.yaml:15: spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present"},
		{"label", swap(apiService, "  name: v1.a.io", "  name: v1.a.io\n  labels:\n    a b: c"), "bad.yaml:5: metadata.labels: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"},
		{"service name", swap(service, "name: svc", "name: 9_y"), "bad.yaml:5: metadata.name: Invalid value: \"9_y\": " + label},
		{"service without namespace", swap(service, "  namespace: x\n", ""), "bad.yaml:3: metadata.namespace: Required value"},
		{"service type", swap(service, "type: ClusterIP", "type: Cluster"), `bad.yaml:7: spec.type: Unsupported value: "Cluster": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`},
		{"cluster IP", swap(service, "10.96.0.1", "10.96.0"), `bad.yaml:8: spec.clusterIP: Invalid value: "10.96.0": must be empty, "None", or a valid IP address`},
		{"no ports", swap(service, "  ports:\n  - name: a\n    port: 443\n    protocol: TCP\n", ""), "bad.yaml:6: spec.ports: Required value"},
		{"service port", swap(service, "port: 443", "port: 0"), "bad.yaml:11: spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"},
		{"second port without name", service + "  - port: 80\n", "bad.yaml:13: spec.ports[1].name: Required value"},
		{"port name twice", service + "  - name: a\n    port: 80\n", `bad.yaml:13: spec.ports[1].name: Duplicate value: "a"`},
		{"port number twice", service + "  - name: b\n    port: 443\n", `bad.yaml:13: spec.ports[1]: Duplicate value: "TCP/443"`},
		{"port name", swap(service, "- name: a", "- name: a_b"), "bad.yaml:10: spec.ports[0].name: Invalid value: \"a_b\": " + label},
		{"protocol", swap(service, "TCP", "tcp"), `bad.yaml:12: spec.ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP"`},
		{"external name", swap(swap(service, "ClusterIP", "ExternalName"), "  clusterIP: 10.96.0.1", "  externalName: a_b"), "bad.yaml:8: spec.externalName: Invalid value: \"a_b\": " + subdomain},
		{"slice of no service", swap(endpointSlice, "kubernetes.io/service-name", "service"), "bad.yaml:6: metadata.labels[kubernetes.io/service-name]: Required value: it says which Service the endpoints belong to"},
		{"no address type", swap(endpointSlice, "addressType: IPv4\n", ""), "bad.yaml:1: addressType: Required value"},
		{"address type", swap(endpointSlice, "IPv4", "ipv4"), `bad.yaml:8: addressType: Unsupported value: "ipv4": supported values: "FQDN", "IPv4", "IPv6"`},
		{"address", swap(endpointSlice, "10.0.0.1", "10.0.0.1:443"), `bad.yaml:14: endpoints[0].addresses[0]: Invalid value: "10.0.0.1:443": must be a valid IP address`},
		{"address of the other family", swap(endpointSlice, "10.0.0.1", "fd00::1"), `bad.yaml:14: endpoints[0].addresses[0]: Invalid value: "fd00::1": must be an IPv4 address`},
		{"address of a name", swap(swap(endpointSlice, "IPv4", "FQDN"), "10.0.0.1", "a_b"), "bad.yaml:14: endpoints[0].addresses[0]: Invalid value: \"a_b\": " + subdomain},
		{"IPv4 address among IPv6", swap(endpointSlice, "IPv4", "IPv6"), `bad.yaml:14: endpoints[0].addresses[0]: Invalid value: "10.0.0.1": must be an IPv6 address`},
		{"address with a zone", swap(swap(endpointSlice, "IPv4", "IPv6"), "10.0.0.1", "fe80::1%eth0"), `bad.yaml:14: endpoints[0].addresses[0]: Invalid value: "fe80::1%eth0": must be a valid IP address`},
		{"too many addresses", endpointSlice + strings.Repeat("  - 10.0.0.1\n", 100), "bad.yaml:13: endpoints[0].addresses: Too many: 101: must have at most 100 items"},
		{"too many endpoints", endpointSlice + strings.Repeat("- addresses: [10.0.0.1]\n", 1000), "bad.yaml:12: endpoints: Too many: 1001: must have at most 1000 items"},
		{"slice port twice", swap(endpointSlice, "endpoints", "- name: a\n  port: 80\nendpoints"), `bad.yaml:12: ports[1].name: Duplicate value: "a"`},
		{"no address", swap(endpointSlice, "- addresses:\n  - 10.0.0.1", "- hostname: a"), "bad.yaml:13: endpoints[0].addresses: Required value: must contain at least 1 address"},
		{"slice port", swap(endpointSlice, "port: 443", "port: 65536"), "bad.yaml:11: ports[0].port: Invalid value: 65536: must be between 1 and 65535, inclusive"},
		{"slice protocol", swap(endpointSlice, "port: 443", "protocol: tcp"), `bad.yaml:11: ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP"`},
		{"slice without port", swap(endpointSlice, "  port: 443\n", ""), "bad.yaml:10: ports[0].port: Required value"},
		{"key", swap(configMap, "ca.crt", "ca/crt"), "bad.yaml:7: data[ca/crt]: Invalid value: \"ca/crt\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"},
		{"long data", swap(configMap, "pem", tooLong), "bad.yaml:6: data: Too long: may not be more than 1048576 bytes"},
		{"long secret", swap(swap(swap(configMap, "ConfigMap", "Secret"), "\ndata", "\nstringData"), "pem", tooLong), "bad.yaml:1: data: Too long: may not be more than 1048576 bytes"},
		{"twice", configMap + "---\n" + configMap, "bad.yaml:9: metadata.name: ConfigMap x/svc: is already at line 1"},
		{"UTF-16", "\xff\xfea\x00:\x00 \x00b\x00", "bad.yaml:1: reading YAML: it is not UTF-8"},
		{"in a list", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: x\n", "bad.yaml:6: items[0].metadata.namespace: Required value"},
		{"role without verbs", swap(clusterRole, "  verbs: [get]\n- non", "- non"), "bad.yaml:6: rules[0].verbs: Required value: verbs must contain at least one value"},
		{"role without groups", swap(clusterRole, "apiGroups: [a.io]\n  resources", "resources"), "bad.yaml:6: rules[0].apiGroups: Required value: resource rules must supply at least one api group"},
		{"role for both", swap(clusterRole, "URLs: [/apis]", "URLs: [/apis]\n  resources: [a]"), `bad.yaml:9: rules[1].nonResourceURLs: Invalid value: ["/apis"]: rules cannot apply to both regular resources and non-resource URLs`},
		{"role of roles", clusterRole + "aggregationRule: {}\n", "bad.yaml:11: aggregationRule: Forbidden: nothing aggregates roles here: list the rules"},
		{"role in a namespace", swap(clusterRole, "name: a", "namespace: x\n  name: a"), "bad.yaml:4: metadata.namespace: Forbidden: not allowed on this type"},
		{"binding to a role", swap(clusterRoleBinding, "kind: ClusterRole\n  name", "kind: Role\n  name"), `bad.yaml:6: roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"`},
		{"binding to nothing", swap(clusterRoleBinding, "  name: a:reader\nsub", "sub"), "bad.yaml:5: roleRef.name: Required value"},
		{"subject", swap(clusterRoleBinding, "kind: Group", "kind: Team"), `bad.yaml:9: subjects[0].kind: Unsupported value: "Team": supported values: "ServiceAccount", "User", "Group"`},
		{"account without namespace", swap(clusterRoleBinding, "  namespace: x\n", ""), "bad.yaml:11: subjects[1].namespace: Required value"},
		{"account's name", swap(clusterRoleBinding, "name: reader\n", "name: reader-\n"), `bad.yaml:13: subjects[1].name: Invalid value: "reader-": ` + subdomain},
		{"subject's group", swap(clusterRoleBinding, "kind: Group\n", "kind: Group\n  apiGroup: a.io\n"), `bad.yaml:10: subjects[0].apiGroup: Unsupported value: "a.io": supported values: "rbac.authorization.k8s.io"`},
		{"list in a list", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n", "bad.yaml:5: items[0].kind: a List in a List is not read"},
	}
}

// Case is an invalid manifest.
type Case struct {
	Name string // describes the fault
	Text string // the file's content
	Want string // the message for the first fault in a file named bad.yaml: bad.yaml:LINE: FIELD: MESSAGE
}

// Remote returns manifests for group/v1 at port 8443 of an address. Its APIService has the annotations, if any.
func Remote(group, address, annotations string) string {
	return At(group, "v1", net.JoinHostPort(address, "8443"), nil, annotations)
}

// At returns manifests for a group-version at an address: its APIService, with the annotations if any, and its Service,
// named after the group in the namespace x, with the address. A nil ca means that nothing is verified.
func At(group, version, address string, ca []byte, annotations string) string {
	host, port, _ := net.SplitHostPort(address)
	trust := "insecureSkipTLSVerify: true"
	if ca != nil {
		trust = "caBundle: " + base64.StdEncoding.EncodeToString(ca)
	}
	return fmt.Sprintf(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %[2]s.%[1]s, annotations: {%[7]s}}
spec: {group: %[1]s, version: %[2]s, groupPriorityMinimum: 100, versionPriority: 100, %[6]s, service: {namespace: x, name: %[3]s}}
---
apiVersion: v1
kind: Service
metadata: {namespace: x, name: %[3]s}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: x, name: %[3]s, labels: {kubernetes.io/service-name: %[3]s}}
addressType: IPv4
ports: [{port: %[5]s}]
endpoints: [{addresses: [%[4]s]}]
`, group, version, strings.ReplaceAll(group, ".", "-"), host, port, trust, annotations)
}

// Good returns a valid manifest of each kind, and those of Services with a name of v1.36 and a fully qualified one.
func Good() []string {
	external := swap(swap(service, "ClusterIP", "ExternalName"), "  clusterIP: 10.96.0.1", "  externalName: a.example.com.")
	named := swap(swap(endpointSlice, "IPv4", "FQDN"), "10.0.0.1", "a.example.com.")
	return []string{apiService, service, swap(service, "name: svc", "name: 9y"), external, endpointSlice, named, configMap, clusterRole, clusterRoleBinding}
}

func swap(s, from, to string) string { return strings.Replace(s, from, to, 1) }
