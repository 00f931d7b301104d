package tides_test

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/examples/directory/tides"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// start serves at the time at, and returns a function that asks as a front proxy's user and one
// that asks without a certificate.
func start(t *testing.T, at time.Time) (ask func(path, accept string) (int, []byte), stranger func() error) {
	t.Helper()
	servers, fronts := pki.NewCA("servers"), pki.NewCA("fronts")
	s := tides.New(tides.Config{
		Certificate: servers.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS(), FrontProxies: fronts.Pool(), Now: func() time.Time { return at },
	})
	l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	go func() { _ = s.ServeTLS(l, "", "") }() // ends with Close
	t.Cleanup(func() { _ = s.Close() })
	get := func(path, accept string, pairs ...tls.Certificate) (int, []byte, error) {
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: servers.Pool(), Certificates: pairs}, DisableKeepAlives: true}}
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String()+path, nil))(t)
		r.Header = http.Header{"Accept": {accept}, "X-Remote-User": {"alice"}}
		res, err := client.Do(r)
		if err != nil {
			return 0, nil, err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return res.StatusCode, body, err
	}
	front := fronts.Issue(pki.Leaf{CommonName: "front-proxy"}).TLS()
	return func(path, accept string) (int, []byte) {
			t.Helper()
			code, body := must.Get2(get(path, accept, front))(t)
			return code, body
		}, func() error {
			_, _, err := get("/apis", "")
			return err
		}
}

func TestTides(t *testing.T) {
	ask, stranger := start(t, time.Unix(0, 0)) // high water in the first harbour
	var one tides.Tide
	code, body := ask("/apis/tides.example.com/v1/tides/brest", "application/json")
	if err := json.Unmarshal(body, &one); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	check.Same(t, tides.TideStatus{Centimetres: 310, AskedBy: "alice"}, one.Status, "brest")
	var table metav1.Table
	code, body = ask("/apis/tides.example.com/v1/tides", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	if err := json.Unmarshal(body, &table); err != nil || code != http.StatusOK || len(table.Rows) != 3 || table.Rows[0].Cells[2] != "down" {
		t.Errorf("%d %s: %v", code, body, err)
	}
	for path, want := range map[string]int{
		"/apis": 200, "/apis/tides.example.com/v1": 200, "/openapi/v3": 200, "/openapi/v3/apis/tides.example.com/v1": 200,
		"/apis/tides.example.com/v1/tides/atlantis": 404, "/apis/other.example.com/v1": 404, "/": 404,
	} {
		if code, body := ask(path, ""); code != want || !json.Valid(body) {
			t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}
	if err := stranger(); err == nil {
		t.Error("somebody without a front proxy's certificate was answered")
	}
}

// The water goes up for half of a period, and is where it was after a whole one.
func TestPeriod(t *testing.T) {
	const period = 12*time.Hour + 25*time.Minute
	at := func(d time.Duration) (s tides.TideStatus) {
		ask, _ := start(t, time.Unix(0, 0).Add(d))
		var one tides.Tide
		if _, body := ask("/apis/tides.example.com/v1/tides/brest", ""); json.Unmarshal(body, &one) != nil {
			t.Fatalf("no object: %s", body)
		}
		return one.Status
	}
	if low := at(period / 2); low.Centimetres != -310 {
		t.Errorf("low water %+v", low)
	}
	if later := at(period * 3 / 4); !later.Rising {
		t.Errorf("after low water %+v", later)
	}
	check.Same(t, at(time.Hour), at(time.Hour+1000*period), "a thousand tides later")
}
