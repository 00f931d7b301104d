package proxy

import "testing"

// A span has Kubernetes' verb, which its method does not tell.
func TestSpanHasTheVerb(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		tr, read := tracer(t, 1_000_000)
		w := newWorld(t, worldConfig{tracer: tr})
		r := w.request(t, "GET", remoteGV+"/widgets", nil)
		r.Header.Set("Authorization", "Bearer token-of-bob")
		w.do(t, w.httpClient(t, proto, nil), r)
		if spans := read(1); len(spans) != 1 || spans[0].Attributes["k8s.verb"] != "list" {
			t.Errorf("%+v", spans)
		}
	})
}
