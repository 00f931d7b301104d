package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// serveDoor serves a door that is ready while ill is false.
func serveDoor(t *testing.T, change func(*options)) (address string, client *tls.Config, ill *atomic.Bool) {
	t.Helper()
	d, ca := aloneDoor(t, change)
	ill = &atomic.Bool{}
	d.ready.List = append(d.ready.List, health.Check{Name: "test", Func: func(*http.Request) error {
		if ill.Load() {
			return errors.New("no local apiserver is healthy")
		}
		return nil
	}})
	runDoor(t, d)
	return d.frontListener.Addr().String(), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}, ill
}

// old is an HTTP/1.1 connection.
type old struct {
	*tls.Conn
	r *bufio.Reader
}

func dialOld(t *testing.T, address string, c *tls.Config) *old {
	t.Helper()
	c = c.Clone()
	c.NextProtos = []string{"http/1.1"}
	conn := must.Get(tls.Dial("tcp", address, c))(t)
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return &old{conn, bufio.NewReader(conn)}
}

// ask sends one request and reports whether the connection ends with its response.
func (o *old) ask(t *testing.T) (status int, last bool) {
	t.Helper()
	must.Get(io.WriteString(o, "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
	res := must.Get(http.ReadResponse(o.r, nil))(t)
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Close
}

// await reads frames until one is wanted (true) or the connection ends.
func (r *rawClient) await(t *testing.T, want func(http2.Frame) bool) bool {
	t.Helper()
	_ = r.SetDeadline(time.Now().Add(20 * time.Second))
	for {
		f, err := r.ReadFrame()
		if err != nil {
			return false
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = r.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = r.WritePing(true, f.Data)
			}
		}
		if want(f) {
			return true
		}
	}
}

func (r *rawClient) ask(t *testing.T, id uint32) {
	t.Helper()
	must.Do(t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.head(), EndHeaders: true, EndStream: true}))
	if !r.await(t, func(f http2.Frame) bool {
		return f.Header().StreamID == id && f.Header().Flags.Has(http2.FlagDataEndStream)
	}) {
		t.Fatal("no answer")
	}
}

func farewell(f http2.Frame) bool {
	g, ok := f.(*http2.GoAwayFrame)
	return ok && g.ErrCode == http2.ErrCodeNo
}

// A replica without a healthy apiserver closes its clients' connections: behind a TCP load balancer
// nothing else moves them to another replica.
func TestUnreadySendsClientsAway(t *testing.T) {
	address, c, ill := serveDoor(t, func(*options) {})
	becomesReady := func() {
		t.Helper()
		must.Soon(t, 20*time.Second, "it is ready, and keeps connections", func() bool {
			status, last := dialOld(t, address, c).ask(t)
			return status == http.StatusOK && !last
		})
	}
	becomesReady()
	one, two := dialOld(t, address, c), dialRaw(t, address, c.Clone())
	if _, last := one.ask(t); last {
		t.Error("the connection of a ready replica ends")
	}
	two.ask(t, 1)
	ill.Store(true)
	if !two.await(t, farewell) {
		t.Error("HTTP/2: no GOAWAY")
	}
	if two.await(t, func(http2.Frame) bool { return false }) {
		t.Error("HTTP/2: the idle connection is kept")
	}
	if _, err := one.r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("HTTP/1.1: the idle connection is kept: %v", err)
	}
	if status, last := dialOld(t, address, c).ask(t); status != http.StatusInternalServerError || !last {
		t.Errorf("HTTP/1.1: a new connection gets %d, and ends %v", status, last)
	}
	late := dialRaw(t, address, c.Clone())
	late.ask(t, 1)
	if !late.await(t, farewell) {
		t.Error("HTTP/2: no GOAWAY on a new connection")
	}
	ill.Store(false)
	becomesReady()
}

// A replica that has just started is ready when it has probed each APIService once, or after two
// seconds, and later ones do not count.
func TestReadyWithVerdicts(t *testing.T) {
	in := registry.Input{Options: &registry.Options{Directory: true, AllowURLs: true}, APIServices: map[string]*apiregistrationv1.APIService{}, Complete: true, Now: time.Now()}
	add := func(group string, annotations map[string]string) {
		in.APIServices["v1."+group] = &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1." + group, Annotations: annotations}, Spec: apiregistrationv1.APIServiceSpec{Group: group, Version: "v1"},
		}
	}
	add("local.example.com", nil)
	local := registry.Build(in, nil)
	add("remote.example.com", map[string]string{"fairlead.dev/url": "https://10.0.0.1"})
	unprobed := registry.Build(in, local)
	e := unprobed.Entries()[1]
	in.Reports = []registry.Report{{Name: e.Name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: registry.Unhealthy}}
	probed := registry.Build(in, unprobed)
	for _, tc := range []struct {
		name   string
		tables []*registry.Table // one after the other
		after  time.Duration     // between two
		want   []error
	}{
		{"nothing is known", []*registry.Table{registry.Build(registry.Input{}, nil)}, 0, []error{errNoTable}},
		{"nothing to probe", []*registry.Table{local}, 0, []error{nil}},
		{"probed", []*registry.Table{unprobed, unprobed, probed}, firstVerdicts / 3, []error{errNoVerdicts, errNoVerdicts, nil}},
		{"no verdict", []*registry.Table{unprobed, unprobed, unprobed}, firstVerdicts / 2, []error{errNoVerdicts, errNoVerdicts, nil}},
		{"a later one", []*registry.Table{local, unprobed}, 0, []error{nil, nil}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var table *registry.Table
				ready := tableReady(func() *registry.Table { return table })
				for i := range tc.tables {
					table = tc.tables[i]
					if err := ready(nil); !errors.Is(err, tc.want[i]) {
						t.Errorf("table %d: %v, want %v", i, err, tc.want[i])
					}
					<-time.After(tc.after)
				}
			})
		})
	}
}

// With --http2=false, clients are offered only HTTP/1.1.
func TestHTTP1Alone(t *testing.T) {
	address, c, _ := serveDoor(t, func(o *options) { o.http2 = false })
	c.NextProtos = []string{"h2", "http/1.1"}
	conn := must.Get(tls.Dial("tcp", address, c))(t)
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("negotiated %q", got)
	}
	if status, _ := dialOld(t, address, c).ask(t); status == 0 {
		t.Error("no answer")
	}
}

// rawClient is an HTTP/2 client that writes frames.
type rawClient struct {
	*http2.Framer
	*tls.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
}

func dialRaw(t *testing.T, address string, c *tls.Config) *rawClient {
	t.Helper()
	c.NextProtos = []string{"h2"}
	conn := must.Get(tls.Dial("tcp", address, c))(t)
	t.Cleanup(func() { _ = conn.Close() })
	r := &rawClient{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	r.enc = hpack.NewEncoder(&r.block)
	must.Get(io.WriteString(conn, http2.ClientPreface))(t)
	must.Do(t, r.WriteSettings())
	return r
}

// head returns the header block of a GET with additional fields.
func (r *rawClient) head(fields ...hpack.HeaderField) []byte {
	r.block.Reset()
	for _, f := range append([]hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "x"}, {Name: ":path", Value: "/"}}, fields...) {
		_ = r.enc.WriteField(f) // cannot fail: writes to memory
	}
	return r.block.Bytes()
}
