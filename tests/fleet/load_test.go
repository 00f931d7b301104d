//go:build e2e

package fleet

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/volley"
)

const (
	// rate is how many requests begin a second, whatever became of those before.
	rate = 50
	// latest is when each must have been answered: 2 s is the bound.
	latest = 2 * time.Second
	// objects is how many ConfigMaps are read, written and watched.
	objects = 20
)

// path is where those are.
const path = "/api/v1/namespaces/fleet/configmaps"

// payload makes an event longer than a frame of HTTP/2, so that a cut would fall inside of one.
var payload = strings.Repeat("x", 20<<10)

// newLoad reads an object, writes one, or lists what is small.
func newLoad(clients []*http.Client, base string) *volley.Load {
	return &volley.Load{Every: time.Second / rate, Clients: clients, Again: turnedAway, Make: func(i int) (method, url, body string) {
		object := fmt.Sprintf("%s%s/object-%d", base, path, i%objects)
		switch i % 4 {
		case 1:
			return http.MethodPatch, object, fmt.Sprintf(`{"data":{"n":"%d"}}`, i)
		case 3:
			return http.MethodGet, base + "/api/v1/namespaces/fleet/serviceaccounts", ""
		}
		return http.MethodGet, object, ""
	}}
}

// turnedAway reports whether kube-apiserver itself, which closes its door a moment before it says
// so to its connections, asks for the request again, a second later. client-go repeats it
// (rest.withRetry), directly and through anybody; what Fairlead itself answers is not repeated
// here. Its time goes on.
func turnedAway(s *volley.Shot) bool {
	return s.Code == http.StatusServiceUnavailable && strings.Contains(s.Text, `"apiserver is shutting down"`) && s.Repeated < 10 // as client-go
}

// judge returns how many requests were not answered well and in time. More than most of them fail
// the test.
func judge(t *testing.T, shots []volley.Shot, most int) int {
	t.Helper()
	away := 0
	for _, s := range shots {
		away += min(s.Repeated, 1)
	}
	t.Logf("%d requests were turned away by kube-apiserver", away)
	return volley.Judge(t, shots, most, func(s *volley.Shot) bool { return s.Code != http.StatusOK || s.Err != nil || s.Took > latest })
}
