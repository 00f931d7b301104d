package front

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A head gets room for what it becomes before net/http reads on, and gives it back. Without room,
// or when others wait, it ends.
func TestHeadsGetRoom(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: x\r\n"
	ordinary := get + "Authorization: Bearer " + strings.Repeat("t", 4<<10) + "\r\n"
	chunked := proportion.Repeat("Transfer-Encoding: chunked\r\nTrailer: ", "n@,", "\r\n")
	groups := get + proportion.Lines(3000, "X-Remote-Group", strings.Repeat("g", 200))
	for _, tt := range []struct {
		name   string
		memory int64 // the bound
		others int64 // what others hold of it, until free has passed
		free   time.Duration
		crowd  int64 // other heads that wait
		say    string
		drip   time.Duration // between kilobytes of it
		want   int
		least  int64 // is held while the request is under way
		after  time.Duration
	}{
		{name: "an ordinary head, whatever others hold", memory: 1 << 20, others: 1 << 20, say: ordinary + "\r\n", want: 200, least: 3 * 4 << 10},
		{name: "three thousand groups", memory: 64 << 20, say: groups + "\r\n", want: 200, least: 3 * 3000 * 200},
		{name: "a thousand names", memory: 64 << 20, say: get + proportion.Lines(998, "n%d", "v") + "\r\n", want: 200, least: 3 * 998 * 112},
		{name: "more names", memory: 64 << 20, say: get + proportion.Lines(1000, "n%d", "v"), want: 431},
		{name: "the same names in turns", memory: 64 << 20, say: get + strings.Repeat(proportion.Lines(2, "n%d", "v"), 600), want: 431},
		{name: "long names that begin alike", memory: 64 << 20, say: get + proportion.Lines(1000, strings.Repeat("n", 64)+"%d", "v"), want: 431},
		{name: "a head that came with the request before", memory: 64 << 20, say: get + "\r\n" + get + proportion.Lines(400, "n%d", "") + "\r\n", want: 200, least: 3 * 400 * 128},
		{name: "a thousand names, some with the request before", memory: 64 << 20, say: get + "\r\n" + get + proportion.Lines(1200, "n%d", "") + "\r\n", want: 431},
		{name: "lines of a body are no names", memory: 64 << 20, say: "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3600\r\n\r\n" + proportion.Lines(600, "%d", ""), want: 200},
		{name: "names in a Trailer", memory: 64 << 20, say: get + chunked(900) + "\r\n0\r\n\r\n", want: 200, least: 3 * 900 * 128},
		{name: "too many", memory: 64 << 20, say: get + chunked(20_000) + "\r\n0\r\n\r\n", want: 431},
		{name: "too many for the room, on two lines", memory: 16 << 20, say: get + strings.Replace(chunked(20_000), ": n", ":\r\n n", 1), want: 429, after: 28500 * time.Millisecond},
		{name: "too many bytes", memory: 64 << 20, say: get + proportion.Lines(1, "n", strings.Repeat("v", 2<<20)), want: 431},
		{name: "room comes", memory: 64 << 20, others: 63 << 20, free: 5 * time.Second, say: groups + "\r\n", want: 200, after: 5 * time.Second},
		{name: "no room comes", memory: 64 << 20, others: 63 << 20, say: groups, want: 429, after: 28500 * time.Millisecond},
		{name: "nor to a whole one", memory: 20 << 20, say: groups + "\r\n", want: 429},
		{name: "a slow one while many wait", memory: 64 << 20, crowd: 100, say: get + proportion.Lines(1, "n", strings.Repeat("v", 40<<10)) + "x", want: 408, after: 2500 * time.Millisecond},
		{name: "a target without end while many wait", memory: 64 << 20, crowd: 100, say: "GET /" + strings.Repeat("a", 40<<10), drip: lookEvery, want: 408, after: 3300 * time.Millisecond},
		{name: "a small slow one while many wait", memory: 64 << 20, crowd: 100, say: get, want: 0, after: readHeaderTimeout},
		{name: "a slow one when too much is held", memory: 64 << 20, others: 65 << 20, say: get + proportion.Lines(1, "n", strings.Repeat("v", 40<<10)) + "x", want: 429},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := hold.New(tt.memory)
				memory.Add(tt.others)
				if tt.free > 0 {
					time.AfterFunc(tt.free, func() { memory.Add(-tt.others) })
				}
				var during int64
				p, dial := plaintext(t, memory, func(_ http.ResponseWriter, r *http.Request) {
					during = r.Context().Value(plainKey{}).(*plain).held
					check.Same(t, true, r.TLS != nil && r.TLS.HandshakeComplete, "the handler sees the TLS connection")
				})
				p.heads.waiting.Add(tt.crowd)
				client := dial("192.0.2.1")
				begun := time.Now()
				go func() {
					for say := tt.say; say != ""; time.Sleep(tt.drip) {
						n := len(say)
						if tt.drip > 0 {
							n = min(n, 1<<10)
						}
						_, _ = io.WriteString(client, say[:n])
						say = say[n:]
					}
				}()
				answers, got, took := bufio.NewReader(client), 0, time.Duration(0)
				for res, err := http.ReadResponse(answers, nil); err == nil; res, err = http.ReadResponse(answers, nil) {
					if got, took = res.StatusCode, time.Since(begun); res.Close {
						break
					}
				}
				if got == 0 {
					took = time.Since(begun)
				}
				check.Same(t, tt.want, got, "status of the last")
				check.Within(t, tt.after-lookEvery, tt.after+time.Second, took, "time until the answer")
				_ = client.NetConn().Close()
				synctest.Wait()
				check.Same(t, true, during >= tt.least, "%d bytes were held during the request, want %d", during, tt.least)
				time.Sleep(time.Second) // net/http lingers after a refusal
				if tt.free == 0 {
					memory.Add(-tt.others)
				}
				check.Same(t, tt.memory/4, memory.Share(), "a share in the end")
			})
		})
	}
}

// Whose head is refused does not keep the connection by a body that never comes, nor does who asks without a path.
func TestRefusedHeadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := plaintext(t, hold.New(64<<20), func(http.ResponseWriter, *http.Request) {})
		const get = "GET / HTTP/1.1\r\nHost: x\r\n"
		for says, want := range map[string]string{
			get + "\r\n" + get + "Content-Length: 1\r\n" + proportion.Lines(1200, "n%d", "") + "\r\n": " 431 ",
			"OPTIONS * HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n":                              " 200 ",
		} {
			client, begun := dial("192.0.2.1"), time.Now()
			go func() { _, _ = io.WriteString(client, says) }() // ends with the connection
			answer, _ := io.ReadAll(client)
			check.Has(t, string(answer), want)
			check.Within(t, 0, 2*bodyRest, time.Since(begun), "time until it ended")
		}
	})
}

// Short heads of one address, however many, leave half of the bound to others.
func TestShortHeadsLeaveRoom(t *testing.T) {
	all := &heads{memory: hold.New(64 << 20)}
	for range (64 << 20) / (16 << 10) / 2 {
		c := &plain{all: all, source: all.memory.Source("192.0.2.1")}
		c.hold(freeHead)
	}
	other := &plain{all: all, source: all.memory.Source("192.0.2.2")}
	check.Same(t, true, other.hold(1<<20) && all.memory.Over() == 0, "another address gets room; over by %d", all.memory.Over())
}

// What handshakes hold is counted, and no address fills the bound with it.
func TestHandshakesGetRoom(t *testing.T) {
	const limit, record = 4 << 20, 12 << 10
	memory := hold.New(limit)
	p, dial := plaintext(t, memory, func(http.ResponseWriter, *http.Request) {})
	held := func() int64 { return limit - 4*memory.Share() }
	hello := append([]byte{1, 0, 0xff, 0xff}, make([]byte, 5*record-4)...) // of 64 KiB
	read := make(chan bool, 40)
	for range cap(read) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go p.greet(&placed{Conn: piped{ours, "192.0.2.1"}, in: ours, leave: func() {}})
		go func() {
			for at := 0; at < len(hello); at += record {
				if _, err := theirs.Write(append([]byte{22, 3, 1, record >> 8, 0}, hello[at:at+record]...)); err != nil {
					break
				}
			}
			read <- true
		}()
	}
	for range cap(read) {
		<-read
	}
	check.Within(t, int64(limit/8), int64(limit/4+cap(read)*freeHead), held(), "bytes that are counted")
	check.Same(t, true, p.cfg.Listener.counted()["no_room"] >= 1, "handshakes without room are counted")
	_ = dial("192.0.2.2")
	_ = p.Close() // an error: its listener is not served
	must.Soon(t, 10*time.Second, "all is given back", func() bool { return held() == 0 })
}

// What a handshake leaves, as a client's certificates, is counted for as long as the connection is open.
func TestCertificatesGetRoom(t *testing.T) {
	const limit = 64 << 20
	memory := hold.New(limit)
	p, _ := plaintext(t, memory, func(http.ResponseWriter, *http.Request) {})
	pair := pki.NewCA("any").Issue(pki.Leaf{CommonName: "jane", Organizations: strings.Split(strings.Repeat("g,", 10_000), ",")}).TLS()
	for _, tt := range []struct {
		least     int
		certs     []tls.Certificate
		protocols []string
	}{
		{parsed*len(pair.Certificate[0]) - freeCerts, []tls.Certificate{pair}, nil},
		{2*200*256 - freeCerts, nil, slices.Repeat([]string{strings.Repeat("p", 255)}, 200)},
	} {
		server, client := secured()
		server.NextProtos, server.ClientAuth, client.Certificates, client.NextProtos = nil, tls.RequestClientCert, tt.certs, tt.protocols
		p.cfg.TLS = server
		ours, theirs := net.Pipe()
		go p.greet(&placed{Conn: piped{ours, "192.0.2.1"}, in: ours, out: ours, leave: func() {}})
		must.Do(t, tls.Client(theirs, client).HandshakeContext(t.Context()))
		held := func() int64 { return limit - 4*memory.Share() }
		must.Soon(t, 10*time.Second, "it is counted", func() bool { return held() >= int64(tt.least) })
		_ = theirs.Close()
		must.Soon(t, 10*time.Second, "it is given back", func() bool { return held() == 0 })
	}
}

// A connection whose handshake panics is no longer one of its address, whose share it would keep in memory for ever.
func TestHandshakePanics(t *testing.T) {
	memory := hold.New(4 << 20)
	p, _ := plaintext(t, memory, func(http.ResponseWriter, *http.Request) {})
	p.cfg.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { panic("a fault") }, MinVersion: tls.VersionTLS12}
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		_ = tls.Client(theirs, &tls.Config{ServerName: "any", MinVersion: tls.VersionTLS12}).HandshakeContext(t.Context())
	}()
	first := memory.Source("192.0.2.1")
	p.greet(piped{ours, "192.0.2.1"})
	first.Leave()
	check.Same(t, true, first != memory.Source("192.0.2.1"), "its address is forgotten")
}

// Connections over HTTP/1.1, and their requests, have places in memory, the last ones not for one
// address. Those without a request for a moment make room for others of their address, and for all
// if all is taken, but none with a request. Nobody waits for clients that do not read.
func TestConnectionsGetRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		p, dial := plaintext(t, hold.New(40*perConn), func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/busy" {
				<-busy
			}
		})
		ask := func(address, path string) (status int, client *tls.Conn) {
			begun := time.Now()
			client = dial(address)
			go func() { _, _ = io.WriteString(client, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n") }() // ends with the connection
			if res, err := http.ReadResponse(bufio.NewReader(client), nil); err == nil {
				status = res.StatusCode
			}
			check.Same(t, true, path == "/busy" || time.Since(begun) == 0, "%s is answered at once", path)
			return status, client
		}
		ended := make(chan int)
		go func() { status, _ := ask("192.0.2.1", "/busy"); ended <- status }()
		synctest.Wait()
		for n := range 33 {
			status, client := ask("192.0.2.1", "/")
			check.Same(t, http.StatusOK, status, "connection %d", n)
			if n%2 == 0 {
				must.Get(io.WriteString(client, "GET /"))(t) // and stalls
			}
		}
		status, _ := ask("192.0.2.1", "/")
		check.Same(t, http.StatusTooManyRequests, status, "while others have just had a request")
		time.Sleep(leastPatience)
		for n := range 20 {
			status, _ = ask(fmt.Sprint("192.0.2.", 1+n), "/")
			check.Same(t, http.StatusOK, status, "address %d", n)
		}
		check.Within(t, 36*perConn, 40*perConn, p.heads.conns.Held(), "bytes held")
		for range 3 {
			go func() { _, _ = ask("192.0.2.99", "/busy") }() // ends with busy
		}
		synctest.Wait()
		others := func() (n int) {
			p.heads.mu.Lock()
			defer p.heads.mu.Unlock()
			for c := range p.heads.all {
				if c.from.Address != "192.0.2.99" {
					n++
				}
			}
			return n
		}
		stay := others() - 1 // one makes room for the last connection of its share
		for range 8 {
			status, _ = ask("192.0.2.99", "/")
			check.Same(t, http.StatusTooManyRequests, status, "beyond its share")
			check.Same(t, stay, others(), "others' connections")
		}
		close(busy)
		check.Same(t, http.StatusOK, <-ended, "the busy one")
	})
}

// Connections that were idle for a while make room for places, where one address needs them its own.
func TestIdleMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, dial := plaintext(t, hold.New(64<<20), func(http.ResponseWriter, *http.Request) {})
		second := p.heads.memory.Source("192.0.2.2")
		for _, from := range []string{"192.0.2.1", "192.0.2.2"} {
			client := dial(from)
			go func() { _, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }() // ends with the connection
			must.Get(http.ReadResponse(bufio.NewReader(client), nil))(t)
			time.Sleep(roomIdle / 2)
		}
		for _, tt := range []struct {
			of   *hold.Source
			left int
		}{{second, 2}, {nil, 1}, {second, 1}, {second, 0}} {
			p.heads.makeRoom(tt.of, atOnce, roomIdle)
			p.heads.mu.Lock()
			check.Same(t, tt.left, len(p.heads.all), "connections that are left")
			p.heads.mu.Unlock()
			time.Sleep(roomIdle / 5)
		}
	})
}

func plaintext(t *testing.T, memory *hold.Bound, serve http.HandlerFunc) (p *Port, dial func(from string) *tls.Conn) {
	t.Helper()
	server, client := secured()
	server.NextProtos, server.SessionTicketsDisabled, client.DynamicRecordSizingDisabled = nil, true, true
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", MaxConnections: 100}))(t)
	p = New(Config{Listener: l, Memory: memory, Handler: serve, Frames: h2.New(h2.Config{}), ConnContext: same, TLS: server})
	go func() { _ = p.http1.Serve(handedOver{p}) }() // ends with Close
	t.Cleanup(func() { _ = p.Close() })
	return p, func(from string) *tls.Conn {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close() })
		go p.greet(piped{ours, from})
		conn := tls.Client(theirs, client)
		must.Do(t, conn.HandshakeContext(t.Context()))
		return conn
	}
}

type piped struct {
	net.Conn
	from string
}

func (c piped) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.from), Port: 1} }
