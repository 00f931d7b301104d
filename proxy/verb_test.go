package proxy

import "testing"

// A span names Kubernetes' verb, which differs from the method.
func TestSpanHasTheVerb(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		tr, read := tracer(t, 1_000_000)
		w := newWorld(t, worldConfig{tracer: tr})
		w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", remoteGV+"/widgets", nil))
		if spans := read(1); len(spans) != 1 || spans[0].Attributes["k8s.verb"] != "list" {
			t.Errorf("%+v", spans)
		}
	})
}
