//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
)

// testCarried checks which other parts of a request arrive: the client's own, unchanged, and none
// of its claims about the route.
func testCarried(t *testing.T, q *quay, c *callers, proto string) {
	send := func(t *testing.T, v visit) (reply, *extension.Request) {
		t.Helper()
		v.proto, v.method = proto, http.MethodGet
		r, got := q.visit(t, q.server, v)
		if got == nil {
			t.Fatalf("%s did not arrive: %d %s", v.path, r.status, r.body)
		}
		return r, got
	}
	t.Run("the target as it stands", func(t *testing.T) {
		for _, path := range []string{
			"/a%2Fb", "/%C3%A9?b=2&a=1&&c", "?x=%zz;y&fieldManager=", "/", "/a'b(c)", "/widget-000?pretty=%2B+%20", "?labelSelector=a%20in%20(b,c)&limit=5",
		} {
			if _, got := send(t, visit{pair: c.dave, path: widgetsPath + path}); !strings.HasPrefix(got.Target, widgetsPath+path) {
				t.Errorf("arrived as %q, want %q", got.Target, widgetsPath+path)
			}
		}
	})
	t.Run("traces and audits", func(t *testing.T) {
		const trace, audit = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "5d3c7a44-6f5e-4a57-9d4c-0f6b2d6b1f00"
		h := http.Header{"Traceparent": {trace}, "Tracestate": {"vendor=1"}, "Baggage": {"k=v"}, "Audit-Id": {audit}}
		_, got := send(t, visit{pair: c.dave, path: widgetsPath + "/widget-000", header: h})
		for name := range h {
			if got.Header.Get(name) != h.Get(name) {
				t.Errorf("%s arrived as %q, want %q", name, got.Header.Values(name), h.Get(name))
			}
		}
		if _, got := send(t, visit{pair: c.dave, path: widgetsPath + "/widget-000"}); len(got.Header.Get("Audit-Id")) != len(audit) && q.lane != direct {
			t.Errorf("without an Audit-ID it arrived with %q", got.Header.Values("Audit-Id"))
		}
		if r, _ := q.visit(t, q.server, visit{proto: proto, method: http.MethodGet, pair: c.dave, path: "/version", header: h}); r.header.Get("Audit-Id") != audit {
			t.Errorf("the local apiserver answered to the Audit-ID %q", r.header.Values("Audit-Id"))
		}
	})
	if q.lane == direct { // kube-apiserver believes everybody, and does not look for loops
		return
	}
	t.Run("the way it took", func(t *testing.T) {
		claims := http.Header{
			"X-Forwarded-For": {"203.0.113.7"}, "X-Forwarded-Host": {"harbour.example.com"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Uri": {"/elsewhere"},
			"Forwarded": {"for=203.0.113.7"},
		}
		honest := map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": strings.TrimPrefix(q.server.URL, "https://")}
		believed := map[string]string{"X-Forwarded-For": "203.0.113.7, 127.0.0.1", "X-Forwarded-Host": "harbour.example.com"}
		for _, by := range []struct {
			name   string
			pair   cluster.Pair
			header http.Header
			want   map[string]string
		}{
			{"certificate", c.dave, claims, honest},
			{"token", cluster.Pair{}, with(claims, bearer(c.alice)), honest},
			{"another proxy", c.otherFront, with(claims, bearer(c.alice)), honest},
			{"front proxy", c.front, with(claims, http.Header{"X-Remote-User": {"carol"}}), believed},
		} {
			_, got := send(t, visit{pair: by.pair, header: by.header, path: widgetsPath + "/widget-000"})
			for name, want := range by.want {
				if v := got.Header.Values(name); len(v) != 1 || v[0] != want {
					t.Errorf("%s by %s: %q, want %q", name, by.name, v, want)
				}
			}
			if got.Header.Get("X-Forwarded-Proto") != "https" || got.Header.Get("X-Forwarded-Uri") != "" || got.Header.Get("Forwarded") != "" {
				t.Errorf("forwarding headers of %s were believed: %v", by.name, got.Header)
			}
		}
	})
	t.Run("loops", func(t *testing.T) {
		_, got := send(t, visit{pair: c.dave, path: widgetsPath + "/widget-000"})
		back := http.Header{"Fairlead-Via": {"another, " + got.Header.Get("Fairlead-Via")}}
		for _, path := range []string{widgetsPath + "/widget-000", "/version"} {
			r, again := q.visit(t, q.server, visit{proto: proto, method: http.MethodGet, pair: c.dave, header: back, path: path})
			wantStatus(t, r, http.StatusLoopDetected, metav1.StatusReasonInternalError, "has come back to the Fairlead that sent it")
			if again != nil {
				t.Errorf("%s arrived a second time", path)
			}
		}
	})
}

// testAnswers lets the extension server misbehave on some paths. Clients get a Status in their own
// format, without addresses.
func testAnswers(t *testing.T, q *quay, c *callers, proto string) {
	for _, tc := range []struct {
		name, path string
		status     int
		reason     metav1.StatusReason
		cause      string
	}{
		{"redirect", widgetsPath + "/" + redirecting, http.StatusBadGateway, metav1.StatusReasonInternalError, "attempted to redirect"},
		{"silence", widgetsPath + "/" + hanging + "?timeout=1s", http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "did not answer within the allotted time"},
		{"forbidden", "/apis/wardle.example.com/v1beta1/flunders", http.StatusForbidden, metav1.StatusReasonForbidden, `User "dave" cannot list resource "flunders" in API group "wardle.example.com"`},
		{"nobody", widgetsPath, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized"},
		{"ambiguous", "/apis/widgets.example.com/v1/../../../api/v1/secrets", http.StatusBadRequest, metav1.StatusReasonBadRequest, "ambiguous"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if q.lane == direct {
				return // kube-apiserver answers differently
			}
			v := visit{proto: proto, method: http.MethodGet, pair: c.dave, path: tc.path}
			if tc.name == "nobody" {
				v.pair, v.header = cluster.Pair{}, bearer(c.bad)
			}
			for _, form := range []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"} {
				begun := time.Now()
				v.header = with(v.header, http.Header{"Accept": {form}})
				r, _ := q.visit(t, q.server, v)
				if got := r.header.Get("Content-Type"); got != form {
					t.Errorf("Content-Type %q, want %q", got, form)
				}
				wantStatus(t, r, tc.status, tc.reason, tc.cause)
				if took := time.Since(begun); took > 20*time.Second {
					t.Errorf("answered after %s", took)
				}
			}
		})
	}
}

// wantStatus requires a Status, in any format, with a cause in its message and without addresses.
func wantStatus(t *testing.T, r reply, code int, reason metav1.StatusReason, cause string) {
	t.Helper()
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(r.body, nil, nil)
	if err != nil {
		t.Fatalf("%d, not a Status: %v: %.500q", r.status, err, r.body)
	}
	s, ok := o.(*metav1.Status)
	if !ok || r.status != code || s.Code != int32(code) || s.Reason != reason || !strings.Contains(s.Message, cause) {
		data, _ := json.Marshal(o) // decoded objects can be encoded
		t.Errorf("%d with %s\nwant %d, reason %s, %q", r.status, data, code, reason, cause)
		return
	}
	if strings.Contains(s.Message, "127.0.0.1") || strings.Contains(s.Message, corev1.NamespaceDefault+".svc") || strings.Contains(s.Message, "localhost") {
		t.Errorf("the message contains an address: %s", s.Message)
	}
}
