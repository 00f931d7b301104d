package manifest

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
)

const good = `# an extension server
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1beta1.metrics.k8s.io
  annotations:
    fairlead.dev/request-timeout: 30s
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  service:
    namespace: kube-system
    name: metrics
---
apiVersion: v1
kind: Service
metadata: {namespace: kube-system, name: metrics}
spec:
  ports:
  - port: 443
--- # the addresses
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: kube-system
  name: metrics-1
  labels: {kubernetes.io/service-name: metrics}
addressType: IPv4
ports:
- port: 10250
endpoints:
- addresses: [127.0.0.1]
---
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "ca"}, "data": {"ca.crt": "pem"}}
---
# nothing but a comment
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Secret
  metadata: {namespace: kube-system, name: pair}
  stringData: {tls.key: x}

---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: kube-system, name: last}
`

func TestDecode(t *testing.T) {
	objects, faults := NewDecoder().Decode("good.yaml", []byte(good))
	check.Same(t, nil, faults, "faults")
	var got []string
	for _, o := range objects {
		got = append(got, fmt.Sprintf("%d %s", o.Line, o.Name()))
	}
	want := []string{
		"1 APIService v1beta1.metrics.k8s.io", "17 Service kube-system/metrics", "23 EndpointSlice kube-system/metrics-1",
		"36 ConfigMap kube-system/ca", "43 Secret kube-system/pair", "49 ConfigMap kube-system/last",
	}
	check.Same(t, want, got, "objects")
	a, ok := objects[0].Value.(*apiregistrationv1.APIService)
	check.Same(t, true, ok && *a.Spec.Service.Port == 443, "APIService is defaulted: %+v", a)
	service, ok := objects[1].Value.(*corev1.Service)
	check.Same(t, true, ok && service.Spec.Type == corev1.ServiceTypeClusterIP && service.Spec.Ports[0].TargetPort.IntVal == 443, "Service is defaulted: %+v", service)
	slice, ok := objects[2].Value.(*discoveryv1.EndpointSlice)
	check.Same(t, true, ok && slice.Ports[0].Name != nil && *slice.Ports[0].Protocol == corev1.ProtocolTCP, "EndpointSlice is defaulted: %+v", slice)
}

// A marker may have blanks and a comment after it: the parser would leave out what follows, without a fault.
func TestMarkers(t *testing.T) {
	const one = "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: a, name: %s}\n"
	for _, mark := range []string{"---", "--- ", "---\t", "--- # b", "---\t# b", "---\r", "...", "... ", "...\t", "... # a", "...\r"} {
		objects, faults := NewDecoder().Decode("f.yaml", fmt.Appendf(nil, one+mark+"\n"+one, "a", "b"))
		check.Same(t, nil, faults, "faults with %q", mark)
		check.Same(t, 2, len(objects), "objects with %q", mark)
	}
}

// JSON is read as strictly where YAML is not a superset of it.
func TestJSON(t *testing.T) {
	const text = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "a", "name": "b"}, "data": {"k": "\ud83d\ude00"%s}}`
	objects, faults := NewDecoder().Decode("f.json", fmt.Appendf(nil, text, ""))
	check.Same(t, true, len(faults) == 0 && len(objects) == 1 && objects[0].Value.(*corev1.ConfigMap).Data["k"] == "😀", "objects %v, faults %v", objects, faults)
	_, faults = NewDecoder().Decode("f.json", fmt.Appendf(nil, text, `, "k": "twice"`))
	check.Same(t, 1, len(faults), "faults of a field that is there twice: %v", faults)
}

// A short file may become many gigabytes by aliases, or contain itself. Ordinary ones are read.
func TestAliases(t *testing.T) {
	head, long := "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: a, name: b}\n", "data: {a: &a "+strings.Repeat("x", 400<<10)
	more := strings.Join(strings.Split("bcdefghijkl", ""), ": *a, ")
	for text, want := range map[string]string{
		"data: {a: &a x, b: *a, c: *a}":                           "",
		long + ", b: *a}":                                         "",
		long + ", " + more + ": *a}":                              "larger than",
		"data: &a {k: [*a]}":                                      "larger than",
		"x: [&a [x, x], &b [*a, *a], *b]\ndata: {a: '*', b: '&'}": "unknown field",
	} {
		_, faults := NewDecoder().Decode("f.yaml", []byte(head+text))
		check.Same(t, want == "", len(faults) == 0, "%.40s: no fault", text)
		check.Has(t, fmt.Sprint(faults), want)
	}
}

func TestInvalid(t *testing.T) {
	d := NewDecoder()
	for _, text := range manifests.Good() {
		objects, faults := d.Decode("good.yaml", []byte(text))
		check.Same(t, [2]int{1, 0}, [2]int{len(objects), len(faults)}, "objects, and faults: %v", faults)
	}
	for _, tc := range manifests.Invalid() {
		t.Run(tc.Name, func(t *testing.T) {
			objects, faults := d.Decode("bad.yaml", []byte(tc.Text))
			check.Same(t, 0, len(objects), "objects despite faults")
			if len(faults) == 0 {
				t.Fatal("no fault")
			}
			check.Same(t, tc.Want, faults[0].String(), "fault")
		})
	}
}

// A missing field is located at its parent.
func TestLineOf(t *testing.T) {
	d := document{text: []byte("a:\n  b:\n  - 1\n  - 2\n"), line: 10}
	for path, want := range map[string]int{"": 10, "a.b": 11, "a.b[1]": 13, "a.b[2]": 11, "a.b[x]": 11, "a.b[-1]": 11, "a.c": 10} {
		check.Same(t, want, d.lineOf(path), "line of %q", path)
	}
}

func TestManyFaults(t *testing.T) {
	_, faults := NewDecoder().Decode("bad.yaml", []byte(strings.Repeat("apiVersion: v1\nkind: Pod\n---\n", 100)))
	check.Same(t, maxFaults, len(faults), "faults")
}

// Valid objects are read even beside faulty ones; unsupported kinds are not reported as mistakes.
func TestDecodeGood(t *testing.T) {
	d := NewDecoder()
	d.Namespace = "own"
	text := "apiVersion: apps/v1\nkind: Deployment\n---\napiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Servise\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	objects, faults := d.DecodeGood("f.yaml", []byte(text))
	check.Same(t, true, len(objects) == 1 && objects[0].Name() == "ConfigMap own/a", "objects %v", objects)
	var foreign []string
	for _, f := range faults {
		foreign = append(foreign, f.Foreign)
	}
	check.Same(t, []string{"Deployment", "Pod", ""}, foreign, "foreign objects, with faults %v", faults)
}

func FuzzDecode(f *testing.F) {
	f.Add(good)
	for _, tc := range manifests.Invalid() {
		f.Add(tc.Text)
	}
	d := NewDecoder()
	f.Fuzz(func(t *testing.T, text string) {
		objects, faults := d.Decode("f", []byte(text))
		check.Same(t, false, len(objects) > 0 && len(faults) > 0, "both objects and faults")
		lines := 1
		for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} { // YAML 1.1, section 5.4
			lines += strings.Count(text, end)
		}
		for _, o := range objects {
			check.Same(t, true, o.Line >= 1 && o.Line <= lines, "object at line %d of %d", o.Line, lines)
		}
		for _, x := range faults {
			check.Same(t, true, x.Line >= 1 && x.Line <= lines+1 && x.Message != "", "fault %+v in %d lines", x, lines)
		}
	})
}
