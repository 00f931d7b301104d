package h2

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// leanConn speaks HTTP/2 with little work, so that a load costs the peers more than its own
// process.
type leanConn struct {
	net.Conn
	fr    *http2.Framer
	w     *bufio.Writer
	enc   *hpack.Encoder
	block bytes.Buffer
	taken int
}

const leanWindow = 1 << 30

func newLean(c net.Conn) *leanConn {
	l := &leanConn{Conn: c, w: bufio.NewWriterSize(c, 128<<10)}
	l.fr = http2.NewFramer(l.w, bufio.NewReaderSize(c, 128<<10))
	l.fr.SetReuseFrames()
	l.fr.SetMaxReadFrameSize(1 << 20)
	l.enc = hpack.NewEncoder(&l.block)
	return l
}

func (l *leanConn) settings() error {
	err := l.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: leanWindow}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1000})
	return errors.Join(err, l.fr.WriteWindowUpdate(0, leanWindow))
}

func (l *leanConn) headers(id uint32, end bool, fields ...string) error {
	l.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = l.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return l.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: l.block.Bytes(), EndStream: end, EndHeaders: true})
}

// control handles the frames that both sides handle alike.
func (l *leanConn) control(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return l.fr.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return l.fr.WritePing(true, f.Data)
		}
	case *http2.DataFrame:
		if l.taken += len(f.Data()); l.taken > leanWindow/2 {
			n := l.taken
			l.taken = 0
			return l.fr.WriteWindowUpdate(0, uint32(n))
		}
	}
	return nil
}

// leanBackend answers by path: /small with 1 KiB, /list with 100 KiB, /watch with an event now and
// one at each /fire. It answers as soon as the head has arrived.
type leanBackend struct {
	mu      sync.Mutex
	watches map[*leanConn][]uint32 // guarded by mu
}

func serveLean(l net.Listener) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	cfg := &tls.Config{Certificates: cert.TLS.Certificates, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true}
	b := &leanBackend{watches: map[*leanConn][]uint32{}}
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go b.serve(tls.Server(c, cfg))
	}
}

func (b *leanBackend) serve(c net.Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	l := newLean(c)
	dec := hpack.NewDecoder(4096, nil)
	r := bufio.NewReaderSize(c, 128<<10)
	l.fr = http2.NewFramer(l.w, r)
	l.fr.SetMaxReadFrameSize(1 << 20)
	defer func() {
		b.mu.Lock()
		delete(b.watches, l)
		b.mu.Unlock()
	}()
	if l.settings() != nil || l.w.Flush() != nil {
		return
	}
	for {
		f, err := l.fr.ReadFrame()
		if err != nil {
			return
		}
		b.mu.Lock() // a /fire on another connection writes here too
		err = l.control(f)
		if h, ok := f.(*http2.HeadersFrame); ok && err == nil {
			err = b.answer(l, dec, h)
		}
		if err == nil && r.Buffered() == 0 {
			err = l.w.Flush()
		}
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

var leanBody = bytes.Repeat([]byte("0123456789abcdef"), 100<<6)

func (b *leanBackend) answer(l *leanConn, dec *hpack.Decoder, h *http2.HeadersFrame) error {
	path := ""
	fields, err := dec.DecodeFull(h.HeaderBlockFragment())
	for _, f := range fields {
		if f.Name == ":path" {
			path = f.Value
		}
	}
	if err != nil {
		return err
	}
	id, n := h.StreamID, 1024
	switch path {
	case "/watch":
		b.watches[l] = append(b.watches[l], id)
		err := l.headers(id, false, ":status", "200", "content-type", "application/json")
		return errors.Join(err, l.fr.WriteData(id, false, leanBody[:512]))
	case "/fire":
		for other, ids := range b.watches {
			for _, w := range ids {
				err = errors.Join(err, other.fr.WriteData(w, false, leanBody[:512]))
			}
			err = errors.Join(err, other.w.Flush())
		}
		n = 2
	case "/list":
		n = 100 << 10
	}
	err = errors.Join(err, l.headers(id, false, ":status", "200", "content-type", "application/json", "content-length", fmt.Sprint(n)))
	for p := leanBody[:n]; len(p) > 0 && err == nil; {
		k := min(len(p), 16<<10)
		err = l.fr.WriteData(id, k == len(p), p[:k])
		p = p[k:]
	}
	return err
}

// leanClient is one connection of a load.
type leanClient struct {
	*leanConn
	next uint32
}

func dialLean(t testing.TB, addr string) *leanClient {
	t.Helper()
	raw := must.Get((&net.Dialer{}).DialContext(t.Context(), "tcp", addr))(t)
	return greet(t, tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, DynamicRecordSizingDisabled: true}))
}

// greet sends the client's preface.
func greet(t testing.TB, c net.Conn) *leanClient {
	t.Helper()
	l := &leanClient{leanConn: newLean(c), next: 1}
	must.Get(l.w.WriteString(http2.ClientPreface))(t)
	must.Do(t, errors.Join(l.settings(), l.w.Flush()))
	return l
}

func (l *leanClient) get(path string) error {
	id := l.next
	l.next += 2
	return l.headers(id, true, ":method", "GET", ":scheme", "https", ":authority", "cluster.example", ":path", path,
		"accept", "application/json", "user-agent", "kubectl/v1.36.3", "authorization", "Bearer 0123456789abcdef0123456789abcdef")
}

// body reads until a stream ends.
func (l *leanClient) body(id uint32) ([]byte, error) {
	var body []byte
	for {
		f, err := l.fr.ReadFrame()
		if err != nil {
			return body, err
		}
		if err := errors.Join(l.control(f), l.w.Flush()); err != nil {
			return body, err
		}
		if f.Header().StreamID != id {
			continue
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			body = append(body, f.Data()...)
		case *http2.RSTStreamFrame:
			return body, fmt.Errorf("stream reset: %v", f.ErrCode)
		}
		if f.Header().Flags.Has(http2.FlagDataEndStream) && (f.Header().Type == http2.FrameData || f.Header().Type == http2.FrameHeaders) {
			return body, nil
		}
	}
}

// run sends n requests, at most streams at a time; each answer has size bytes.
func (l *leanClient) run(path string, n, streams, size int) error {
	asked, done, got := 0, 0, 0
	for ; asked < min(streams, n); asked++ {
		if err := l.get(path); err != nil {
			return err
		}
	}
	if err := l.w.Flush(); err != nil {
		return err
	}
	for done < n {
		f, err := l.fr.ReadFrame()
		if err != nil {
			return err
		}
		if err := l.control(f); err != nil {
			return err
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			got += len(f.Data())
			if !f.StreamEnded() {
				continue
			}
			done++
			if asked < n {
				asked++
				err = l.get(path)
			}
		case *http2.RSTStreamFrame:
			err = fmt.Errorf("stream reset: %v", f.ErrCode)
		case *http2.GoAwayFrame:
			err = fmt.Errorf("GOAWAY: %v %s", f.ErrCode, f.DebugData())
		}
		if err == nil {
			err = l.w.Flush()
		}
		if err != nil {
			return err
		}
	}
	if got != n*size {
		return fmt.Errorf("%d bytes, want %d", got, n*size)
	}
	return nil
}

// shape is a load: connections, streams on each, total requests.
type shape struct {
	name           string
	conns, streams int
	path           string
	size, count    int
}

func dialAll(t testing.TB, addr string, n int) []*leanClient {
	conns := make([]*leanClient, n)
	for i := range conns {
		conns[i] = dialLean(t, addr)
		t.Cleanup(func() { _ = conns[i].Close() })
	}
	return conns
}

func (s shape) run(conns []*leanClient) error {
	var wg sync.WaitGroup
	errs := make([]error, len(conns))
	for i, c := range conns {
		wg.Go(func() { errs[i] = c.run(s.path, max(1, s.count/len(conns)), s.streams, s.size) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func median(v []float64) string {
	v = slices.Sorted(slices.Values(v))
	return fmt.Sprintf("%.2f–%.2f–%.2f", v[0], v[len(v)/2], v[len(v)-1])
}

// BenchmarkPeers puts the same load on each peer in turn, for b.N rounds, and shows the cost of a
// request as a ratio to the plain ReverseProxy of the same round. Absolute figures drift with the
// machine; ratios hardly do.
func BenchmarkPeers(b *testing.B) {
	for _, s := range []shape{
		{name: "GET-8x8", conns: 8, streams: 8, path: "/small", size: 1024, count: 8000},
		{name: "GET-1x1", conns: 1, streams: 1, path: "/small", size: 1024, count: 1500},
		{name: "GET-8x1", conns: 8, streams: 1, path: "/small", size: 1024, count: 4000},
		{name: "GET-100x1", conns: 100, streams: 1, path: "/small", size: 1024, count: 4000},
		{name: "LIST-4x4", conns: 4, streams: 4, path: "/list", size: 100 << 10, count: 800},
	} {
		b.Run(s.name, func(b *testing.B) { benchShape(b, s) })
	}
}

func benchShape(b *testing.B, s shape) {
	backend := startPeer(b, "backend")
	kinds := []string{"rp", "portable", "loop"}
	peers := map[string]*peerProcess{}
	conns := map[string][]*leanClient{}
	cost, mallocs := map[string][]float64{}, map[string][]float64{}
	for _, k := range kinds {
		peers[k] = startPeer(b, k+"="+backend.addr)
		conns[k] = dialAll(b, peers[k].addr, s.conns)
		if err := s.run(conns[k]); err != nil { // warm up
			b.Fatalf("%s: %v", k, err)
		}
	}
	b.ResetTimer()
	for range b.N {
		for _, k := range kinds {
			before := peers[k].usage(b, "")
			if err := s.run(conns[k]); err != nil {
				b.Fatalf("%s: %v", k, err)
			}
			after := peers[k].usage(b, "")
			n := float64(max(1, s.count/s.conns) * s.conns)
			cost[k] = append(cost[k], float64(after.CPU-before.CPU)/n/1000)
			mallocs[k] = append(mallocs[k], float64(after.Mallocs-before.Mallocs)/n)
		}
	}
	var out strings.Builder
	for _, k := range kinds {
		ratio := make([]float64, len(cost[k]))
		for i := range ratio {
			ratio[i] = cost[k][i] / cost["rp"][i]
		}
		fmt.Fprintf(&out, "\n%-9s %-9s µs/request %-20s × rp %-18s mallocs %s", s.name, k, median(cost[k]), median(ratio), median(mallocs[k]))
	}
	b.Log(out.String())
}

func isData(f http2.Frame) bool { return f.Header().Type == http2.FrameData }

var watchCount = flag.Int("watches", 2000, "watches that BenchmarkIdleWatches opens, 250 on a connection")

// BenchmarkIdleWatches opens -watches watches, sends each one event, and shows their cost: resident
// memory, and CPU per event.
func BenchmarkIdleWatches(b *testing.B) {
	backend := startPeer(b, "backend")
	for _, kind := range []string{"rp", "portable", "loop"} {
		b.Run(kind, func(b *testing.B) {
			p := startPeer(b, kind+"="+backend.addr)
			conns := dialAll(b, p.addr, (*watchCount+249)/250)
			trigger := dialLean(b, backend.addr)
			b.Cleanup(func() { _ = trigger.Close() })
			for _, c := range conns {
				must.Do(b, c.run("/small", 20, 10, 1024))
			}
			before := p.usage(b, "gc")
			each := *watchCount / len(conns)
			for _, c := range conns {
				for range each {
					must.Do(b, c.get("/watch"))
				}
				must.Do(b, errors.Join(c.w.Flush(), c.events(each)))
			}
			open := p.usage(b, "gc")
			for b.Loop() {
				must.Do(b, trigger.run("/fire", 1, 1, 2))
				for _, c := range conns {
					must.Do(b, c.events(each))
				}
			}
			fired := p.usage(b, "gc")
			n := float64(each * len(conns))
			b.ReportMetric(float64(fired.RSS)/(1<<20), "MiB")
			b.ReportMetric(float64(fired.RSS-before.RSS)/n/1024, "KiB/watch")
			b.ReportMetric(float64(fired.CPU-open.CPU)/n/float64(b.N)/1000, "µs/event")
		})
	}
}

// events reads n DATA frames.
func (l *leanClient) events(n int) error {
	for got := 0; got < n; {
		f, err := l.fr.ReadFrame()
		if err != nil {
			return fmt.Errorf("after %d of %d events: %w", got, n, err)
		}
		if err := errors.Join(l.control(f), l.w.Flush()); err != nil {
			return err
		}
		if isData(f) {
			got++
		}
	}
	return nil
}
