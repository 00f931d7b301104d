package registry

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A recurring fault has a constant message, though the original differs in our port and in times.
func TestMessagesAreSteady(t *testing.T) {
	reset := func(port int) string {
		err := &net.OpError{
			Op: "read", Net: "tcp", Err: syscall.ECONNRESET,
			Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 443},
		}
		return fmt.Sprintf("failing or missing response from U: Get: %v", err)
	}
	expired := func(now string) string {
		return "x509: certificate has expired or is not yet valid: current time " + now + " is after 2020-01-01T00:00:00Z"
	}
	for _, tt := range []struct{ message, again, want string }{
		{reset(34567), reset(34568), "failing or missing response from U: Get: read tcp 10.0.0.2:443: connection reset by peer"},
		{expired("2026-11-22T06:00:00Z"), expired("2026-11-22T06:00:10Z"), "x509: certificate has expired or is not yet valid: current time is after 2020-01-01T00:00:00Z"},
		{strings.Repeat("x", 5000), strings.Repeat("x", 5000), strings.Repeat("x", 1024) + "…"},
		{"current time 3", "current time 3", "current time 3"}, // half the words of an expired certificate
	} {
		check.Same(t, [2]string{tt.want, tt.want}, [2]string{normalizeCause(tt.message), normalizeCause(tt.again)}, "messages")
	}
	if got := normalizeCause(strings.Repeat("ü", 600)); len(got) != 1024+len("…") || !utf8.ValidString(got) {
		t.Errorf("a message of %d bytes", len(got))
	}
}

// Whoever writes EndpointSlices may write any number of endpoints. Only so many are used, the ready ones before others.
func TestEndpointsAreBounded(t *testing.T) {
	slice := func(from, n int, ready bool) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(443))}}}
		for i := range n {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{fmt.Sprintf("10.0.%d.%d", (from+i)/100, (from+i)%100)},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: new(true), Terminating: new(!ready)},
			})
		}
		return s
	}
	all := slice(0, maxEndpoints, true)
	tooMany := []string{"its Service has more than 1000 endpoints: the others are not used"}
	key, api := types.NamespacedName{Namespace: "extensions", Name: "server"}, remoteService("example.com", "v1", "server")
	for _, tt := range []struct {
		name     string
		slices   []*discoveryv1.EndpointSlice
		problems []string
	}{
		{"as many as allowed", []*discoveryv1.EndpointSlice{all}, nil},
		{"the same twice", []*discoveryv1.EndpointSlice{all, all}, nil},
		{"one more", []*discoveryv1.EndpointSlice{slice(maxEndpoints, 1, true), all}, tooMany},
		{"terminating ones", []*discoveryv1.EndpointSlice{slice(maxEndpoints, maxEndpoints, false), all}, tooMany},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := Build(Input{
				APIServices: map[string]*apiregistrationv1.APIService{api.Name: api}, Services: map[types.NamespacedName]*corev1.Service{key: clusterIP(key)},
				Slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{key: tt.slices}, Complete: true,
			}, nil).Entries()[0]
			check.Same(t, maxEndpoints, len(e.Endpoints), "endpoints that are used")
			check.Same(t, tt.problems, e.Problems, "problems")
			if slices.ContainsFunc(e.Endpoints, func(ep Endpoint) bool { return ep.Terminating }) {
				t.Error("a terminating one is used instead of a ready one")
			}
		})
	}
}
