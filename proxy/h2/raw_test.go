package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/internal/spare"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

type inputConn struct {
	net.Conn
	in io.Reader
}

func (c inputConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// own makes a loop the owner of a connection, as far as TLS can see.
func (r *rawConn) own() {
	r.early, r.spare = nil, &spare.Buffers{}
	r.owned.Store(true)
}

// Until a loop owns a connection a write may have a deadline, as that of a handshake.
func TestWriteDeadlineOfHandshake(t *testing.T) {
	near, far := net.Pipe() // which nobody reads
	defer far.Close()
	r := Wrap(near)
	defer r.Close()
	must.Do(t, r.SetWriteDeadline(time.Now()))
	check.Is(t, os.ErrDeadlineExceeded, check.Err(r.Write([]byte("x"))), "writing")
}

// After a handshake TLS gets no long message, which it would collect, from a connection that no loop owns, either.
func TestQuiet(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		for err := error(nil); err == nil; { // ends when a is closed
			_, err = b.Write(append([]byte{22, 3, 3, 1, 0}, make([]byte, 256)...))
		}
	}()
	c := tls.Client(Wrap(a), insecure())
	for _, most := range []int{0, maxQuiet, maxQuiet / 4} {
		Quiet(c, most)
		n, err := io.CopyN(io.Discard, c.NetConn().(*rawConn), 4*maxQuiet)
		check.Same(t, most > 0, errors.Is(err, errQuiet) && int(n) < 2*most, "%d bytes, %v", n, err)
	}
}

// Before and after a loop owns the connection, however the input is split, no read passes the end
// of a record and no byte is lost. Otherwise a request in the same segment as the last message of
// the handshake would be stuck in TLS, or the next record would not be recognized.
func TestRawReadKeepsRecordsApart(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var stream []byte
		ends := map[int]bool{}
		for range 1 + rnd.IntN(20) {
			n := rnd.IntN(100)
			if rnd.IntN(4) == 0 {
				n = rnd.IntN(17000)
			}
			stream = append(stream, 23, 3, 3, byte(n>>8), byte(n))
			stream = append(stream, bytes.Repeat([]byte{byte(rnd.Int())}, n)...)
			ends[len(stream)] = true
		}
		var pieces []io.Reader
		for p := stream; len(p) > 0; {
			n := min(len(p), 1+rnd.IntN(1+rnd.IntN(5000)))
			pieces = append(pieces, bytes.NewReader(p[:n]))
			p = p[n:]
		}
		src := inputConn{in: io.MultiReader(pieces...)}
		r := Wrap(src).(*rawConn)
		over := rnd.IntN(len(stream))
		var got []byte
		for len(got) < len(stream) {
			if !r.owned.Load() && len(got) >= over && ends[len(got)] {
				r.own()
			}
			buf := make([]byte, 512+rnd.IntN(17000)) // crypto/tls always has 512 free
			n, err := r.Read(buf)
			if errors.Is(err, errNoInput) && r.owned.Load() {
				r.rest = make([]byte, rawBuffer)
				k, _ := src.Read(r.rest)
				r.rest = r.rest[:k]
				continue
			}
			must.Be(t, err == nil, "after %d of %d bytes: %v", len(got), len(stream), err)
			for i := len(got) + 1; i < len(got)+n; i++ {
				if ends[i] {
					t.Fatalf("a read from %d to %d goes beyond the record's end at %d", len(got), len(got)+n, i)
				}
			}
			got = append(got, buf[:n]...)
		}
		check.Same(t, true, bytes.Equal(got, stream), "bytes are unchanged")
	}
}

type heldConn struct {
	net.Conn
	hold bool
	held []byte
}

func (c *heldConn) Write(p []byte) (int, error) {
	if !c.hold {
		return c.Conn.Write(p)
	}
	c.held = append(c.held, p...)
	return len(p), nil
}

// corkedConn keeps everything written after the first input.
type corkedConn struct{ heldConn }

func (c *corkedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.hold = c.hold || n > 0
	return n, err
}

func TestRequestInTheHandshakesLastSegment(t *testing.T) { onDrivers(t, testRequestWithHandshake) }

func testRequestWithHandshake(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "early") }), nil)
	raw := must.Get((&net.Dialer{}).DialContext(t.Context(), "tcp", s.addr))(t)
	corked := &corkedConn{heldConn{Conn: raw}}
	l := greet(t, tls.Client(corked, insecure()))
	must.Do(t, l.gets(1, "/"))
	must.Get(raw.Write(corked.held))(t)
	_ = raw.SetReadDeadline(time.Now().Add(10 * time.Second))
	for { // sends nothing, which would wake the engine
		f := must.Get(l.fr.ReadFrame())(t)
		if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
			return
		}
	}
}

// heldTLS returns both ends of a connection after its handshake. What the client sends from now on
// is held: a test passes it to the server's raw connection.
func heldTLS(t *testing.T, version uint16) (raw *rawConn, server, client *tls.Conn, sent *heldConn) {
	t.Helper()
	ca := pki.NewCA("serving")
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	raw = Wrap(near).(*rawConn)
	server = tls.Server(raw, &tls.Config{MinVersion: version, MaxVersion: version, SessionTicketsDisabled: true,
		Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"x"}}).TLS()}})
	sent = &heldConn{Conn: far}
	client = tls.Client(sent, &tls.Config{RootCAs: ca.Pool(), ServerName: "x", MinVersion: version, MaxVersion: version})
	done := make(chan error, 1)
	go func() { done <- client.HandshakeContext(t.Context()) }()
	must.Do(t, server.HandshakeContext(t.Context()))
	must.Do(t, <-done)
	raw.own()
	sent.hold = true
	return raw, server, client, sent
}

// The driver relies on this, which crypto/tls does not promise: a Temporary error leaves the
// connection usable and is returned unchanged, and a partly read record is kept until the rest has
// come. Here each byte is followed by such an error.
func TestTLSKeepsPartialRecords(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			raw, server, client, sent := heldTLS(t, version)
			const first, second = "the first record", "and the second"
			for _, p := range []string{first, second} {
				must.Get(io.WriteString(client, p))(t)
			}
			var got []byte
			buf := make([]byte, 100)
			for i := range sent.held {
				raw.rest = sent.held[i : i+1]
				n, err := server.Read(buf)
				must.Be(t, err == nil || err == errNoInput, "after %d of %d bytes: %v", i+1, len(sent.held), err) //nolint:errorlint // this is what is tested
				got = append(got, buf[:n]...)
			}
			check.Same(t, first+second, string(got), "what was read")
			must.Get(io.WriteString(server, "and back"))(t)
			check.Same(t, true, len(raw.out) > 0, "something is written afterwards")
		})
	}
}

// unread detects unread input of a socket.
func TestUnread(t *testing.T) {
	ours, theirs := sockets(t)
	raw := Wrap(ours).(*rawConn)
	must.Do(t, (&loop{sh: &shard{pool: &buffers{}}}).own(raw))
	check.Same(t, false, raw.unread(), "unread input before anything was sent")
	must.Get(theirs.Write([]byte("x")))(t)
	must.Soon(t, 10*time.Second, "what was sent is seen", raw.unread)
}

// What waits for a peer that does not read counts by its length, so it does not keep a large buffer of others.
func TestWaitingOutputHasItsOwnSize(t *testing.T) {
	large := func() []byte { return make([]byte, 10, 128<<10) }
	raw := &rawConn{fd: -1, spare: &spare.Buffers{}, out: large(), pending: large()}
	raw.taken()
	check.Same(t, [2]int{10, 10}, [2]int{len(raw.out), len(raw.pending)}, "bytes that wait")
	check.Within(t, 10, 8<<10, max(cap(raw.out), cap(raw.pending)), "the size of their buffers")
}

type wrapped struct{ *net.TCPConn }

// transparent declares that it does not change the bytes.
type transparent struct{ net.Conn }

func (t transparent) Wraps() net.Conn { return t.Conn }

// A wrapper is bypassed only if it declares that it may be.
func TestWrapperIsNotPassedBy(t *testing.T) {
	tcp := &net.TCPConn{}
	for _, tt := range []struct {
		name string
		c    net.Conn
		want socket
	}{
		{"a socket", tcp, tcp},
		{"a wrapper that says nothing", wrapped{tcp}, nil},
		{"one that says so", transparent{tcp}, tcp},
		{"two", transparent{transparent{tcp}}, tcp},
		{"one around one that says nothing", transparent{wrapped{tcp}}, nil},
		{"TLS, which has bytes of its own", tls.Client(tcp, &tls.Config{InsecureSkipVerify: true}), nil},
	} {
		check.Same(t, true, socketOf(tt.c) == tt.want, "%s: its socket", tt.name)
	}
}

// What TLS writes on its own is bounded if the peer does not take it. Output that is being
// encrypted, or waits for the socket, is no answer of TLS, however much it is.
func TestOutputIsNoAnswerOfTLS(t *testing.T) {
	raw, server, _, _ := heldTLS(t, tls.VersionTLS13)
	var full [2]int
	must.Do(t, syscall.Pipe2(full[:], syscall.O_NONBLOCK))
	defer func() { _, _ = syscall.Close(full[0]), syscall.Close(full[1]) }()
	for err := error(nil); err == nil; _, err = syscall.Write(full[1], make([]byte, 4<<10)) {
	}
	raw.fd = full[1] // takes nothing
	write := func(n int) { must.Get(server.Write(make([]byte, n)))(t) }
	write(maxOwn / 2)
	must.Do(t, raw.flushOwn())
	raw.reserve(2 * maxOwn)
	write(2 * maxOwn)
	must.Do(t, raw.flushOwn())
	done, err := raw.flushOr(make([]byte, 2*maxOwn))
	check.Same(t, true, !done && err == nil && raw.flushOwn() == nil, "output waits: done %v, %v", done, err)
	write(3 * maxOwn)
	check.Is(t, errOwnOutput, raw.flushOwn(), "what TLS has written while output waits")
	raw.pending, raw.out = nil, raw.out[:2*maxOwn]
	check.Is(t, errOwnOutput, raw.flushOwn(), "the rest is TLS's own")
}

type mute struct{ net.Conn }

func (mute) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// A bridge carries both directions. It ends with its tunnel, and when that takes no more. It holds a record for each
// direction: there may be one for each endpoint of 10,000 APIServices.
func TestBridge(t *testing.T) {
	const n = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		throughBridge(t, true)
	}
	runtime.ReadMemStats(&after)
	check.Within(t, 0, 3*recordContent, (after.TotalAlloc-before.TotalAlloc)/n, "bytes for a bridge")
	throughBridge(t, false)
}

func throughBridge(t *testing.T, takes bool) {
	t.Helper()
	var c net.Conn
	c, far := net.Pipe()
	if !takes {
		c = mute{c}
	}
	near := os.NewFile(uintptr(must.Get(bridge(c))(t)), "near")
	defer near.Close()
	_ = near.SetDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 2)
	go func() { _, _ = far.Write([]byte("in")) }() // ends with the pipe
	must.Get(io.ReadFull(near, buf))(t)
	must.Get(near.WriteString("up"))(t)
	if takes {
		must.Get(io.ReadFull(far, buf))(t)
		must.Do(t, far.Close())
	}
	check.Same(t, "", string(must.Get(io.ReadAll(near))(t)), "its end, where output is taken: %v", takes)
}

// Output that a slow reader takes in small parts costs in proportion to its size: heads of answers may be megabytes.
func TestOutputInProportion(t *testing.T) {
	var pipe [2]int
	must.Do(t, syscall.Pipe2(pipe[:], syscall.O_NONBLOCK))
	defer func() { _, _ = syscall.Close(pipe[0]), syscall.Close(pipe[1]) }()
	proportion.Check(t, proportion.Row{Name: "taken by pages", N: 1 << 20, Of: func(n int) (int, func() any) {
		page := make([]byte, 4<<10)
		return n, func() any {
			r := &rawConn{fd: pipe[1], spare: &spare.Buffers{}, out: make([]byte, n)}
			_, err := r.flushOr(page)
			for left := n; left > 0; left -= must.Get(syscall.Read(pipe[0], page))(t) {
				must.Do(t, err)
				_, err = r.resume()
			}
			return nil
		}
	}})
}
