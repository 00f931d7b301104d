package h2

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/internal/budget"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// recordConn is a TLS 1.3 client that can write any records: many in one packet, empty ones, and key updates (RFC 8446
// §4.6.3), for which crypto/tls has no public function. crypto/tls does the handshake and all reading. What is sent
// afterwards is encrypted here, with the secret from tls.Config.KeyLogWriter.
type recordConn struct {
	*tls.Conn
	t      *testing.T
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

func dialRecords(t *testing.T, s *stand) (*recordConn, *http2.Framer) {
	t.Helper()
	var keys bytes.Buffer
	config := insecure()
	config.MinVersion, config.KeyLogWriter = tls.VersionTLS13, &keys
	c := &recordConn{t: t, Conn: must.Get(tls.Dial("tcp", s.addr, config))(t)}
	t.Cleanup(func() { _ = c.NetConn().Close() })
	suite := c.ConnectionState().CipherSuite
	must.Be(t, suite == tls.TLS_AES_128_GCM_SHA256, "cipher suite %s", tls.CipherSuiteName(suite))
	_, secret, _ := strings.Cut(keys.String(), "CLIENT_TRAFFIC_SECRET_0 ")
	c.use(must.Get(hex.DecodeString(strings.Fields(secret)[1]))(t))
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	fr := http2.NewFramer(c, c)
	must.Get(io.WriteString(c, http2.ClientPreface))(t)
	must.Do(t, fr.WriteSettings())
	return c, fr
}

// use derives the keys of a secret (§7.3).
func (c *recordConn) use(secret []byte) {
	c.secret, c.seq = secret, 0
	c.iv = c.expand("iv", 12)
	c.aead = must.Get(cipher.NewGCM(must.Get(aes.NewCipher(c.expand("key", 16)))(c.t)))(c.t)
}

// expand is HKDF-Expand-Label with an empty context (§7.1).
func (c *recordConn) expand(label string, n int) []byte {
	label = "tls13 " + label
	info := append([]byte{0, byte(n), byte(len(label))}, label...)
	return must.Get(hkdf.Expand(sha256.New, c.secret, string(append(info, 0)), n))(c.t)
}

// appendData appends a record of application data; it may be empty.
func (c *recordConn) appendData(to, content []byte) []byte { return c.seal(to, 23, content) }

// appendKeyUpdate appends a key update that asks for one, and changes the keys.
func (c *recordConn) appendKeyUpdate(to []byte) []byte {
	to = c.seal(to, 22, []byte{24, 0, 0, 1, 1})
	c.use(c.expand("traffic upd", sha256.Size))
	return to
}

func (c *recordConn) seal(to []byte, kind byte, content []byte) []byte {
	n := len(content) + 1 + c.aead.Overhead()
	header := []byte{23, 3, 3, byte(n >> 8), byte(n)}
	nonce := bytes.Clone(c.iv)
	low := nonce[len(nonce)-8:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)^c.seq)
	c.seq++
	return c.aead.Seal(append(to, header...), nonce, append(bytes.Clone(content), kind), header)
}

func (c *recordConn) send(records []byte) error { return check.Err(c.NetConn().Write(records)) }

// Write sends one record for each call.
func (c *recordConn) Write(p []byte) (int, error) { return len(p), c.send(c.appendData(nil, p)) }

func ponged(t *testing.T, fr *http2.Framer, data byte) {
	t.Helper()
	for {
		if p, ok := must.Get(fr.ReadFrame())(t).(*http2.PingFrame); ok && p.IsAck() && p.Data[0] == data {
			return
		}
	}
}

// unanswered returns a frame that the engine does not answer.
func unanswered() []byte {
	var b bytes.Buffer
	_ = http2.NewFramer(&b, nil).WriteWindowUpdate(0, 1000)
	return b.Bytes()
}

func pings(t *testing.T) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
}

// A key update costs ten times what a frame costs, and must be charged. crypto/tls tolerates
// sixteen before each frame, forever.
func TestKeyUpdateFlood(t *testing.T) { onDrivers(t, testKeyUpdateFlood) }

func testKeyUpdateFlood(t *testing.T, driver string) {
	s := newStand(t, driver, pings(t), nil, func(cfg *Config) { cfg.Shards = 1 })
	c, _ := dialRecords(t, s)
	began, sent := time.Now(), 0
	go func() { _, _ = io.Copy(io.Discard, c.NetConn()) }() // discard what TLS answers
	for ; sent < 100_000; sent += 16 {
		var records []byte
		for range 16 {
			records = c.appendKeyUpdate(records)
		}
		if c.send(c.appendData(records, unanswered())) != nil {
			break
		}
	}
	// It is unknown how many were still in the socket when the connection was closed.
	check.Same(t, 1, s.server.shards[0].e.Count.Floods.Load(), "connections that %d key updates in %v ended", sent, time.Since(began))
}

// After the handshake nobody sends a long message of TLS, which crypto/tls would collect up to 256 KiB.
func TestLongMessage(t *testing.T) { onDrivers(t, testLongMessage) }

func testLongMessage(t *testing.T, driver string) {
	s := newStand(t, driver, pings(t), nil)
	c, _ := dialRecords(t, s)
	part := make([]byte, recordContent)
	copy(part, []byte{11, 3, 0xff, 0xff}) // a certificate, with its length
	for n := range 8 {
		if c.send(c.seal(nil, 22, part)) != nil {
			break
		}
		if n == 2 {
			must.Soon(t, 10*time.Second, "parts of it are counted", func() bool { return s.server.cfg.Memory.Held() > 2*recordContent })
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	check.Same(t, false, errors.Is(check.Err(io.Copy(io.Discard, c.NetConn())), os.ErrDeadlineExceeded), "the connection stays")
}

// A client is not charged for rekeying as often as a cautious client may, or for records of one
// byte. TLS answers a key update by itself, which is sent although the engine has nothing to send.
func TestKeyUpdatesInOrder(t *testing.T) { onDrivers(t, testKeyUpdatesInOrder) }

func testKeyUpdatesInOrder(t *testing.T, driver string) {
	s := newStand(t, driver, pings(t), nil)
	c, fr := dialRecords(t, s)
	for n := range byte(100) {
		update := c.appendKeyUpdate(nil)
		var ping bytes.Buffer
		_ = http2.NewFramer(&ping, nil).WritePing(false, [8]byte{n})
		for _, b := range ping.Bytes() {
			update = c.appendData(update, []byte{b})
		}
		must.Do(t, c.send(update))
		ponged(t, fr, n)
	}
	must.Do(t, c.send(c.appendData(c.appendKeyUpdate(nil), unanswered())))
	// The answer's content is a message of five bytes, its type and the tag. No frame and no alert has that size.
	record := make([]byte, recordHeader+5+1+16)
	must.Get(io.ReadFull(c.NetConn(), record))(t)
	check.Same(t, true, bytes.HasPrefix(record, []byte{23, 3, 3, 0, 5 + 1 + 16}), "the answer to the key update: %x", record)
}

// Tomcat loses its place if a record has the rest of a frame, and others: what a backend gets are
// records of whole frames, or of one frame alone.
func TestWholeFrames(t *testing.T) {
	s := newStand(t, "loop", pings(t), nil, func(cfg *Config) { cfg.Shards = 1 })
	backend := must.Get(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: s.backend.TLS.Certificates, NextProtos: []string{"h2"}}))(t)
	t.Cleanup(func() { _ = backend.Close() })
	s.ep = endpoint(backend.Addr().String())
	const uploads = 8
	for range uploads {
		go func() { _, _ = s.client.Post(s.url, "", bytes.NewReader(make([]byte, 100<<10))) }() // never answered
	}
	c := must.Get(backend.Accept())(t)
	t.Cleanup(func() { _ = c.Close() })
	fr := http2.NewFramer(c, nil)
	must.Do(t, fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
	must.Do(t, fr.WriteWindowUpdate(0, 1<<30))
	records := make([]byte, 2*recordContent)
	for whole := 0; whole < uploads; {
		n := must.Get(c.Read(records))(t) // crypto/tls returns one
		p := bytes.TrimPrefix(records[:n], []byte(http2.ClientPreface))
		if h := must.Get(http2.ReadFrameHeader(bytes.NewReader(p)))(t); len(p) < wire.FrameHeaderLen+int(h.Length) {
			n += must.Get(c.Read(records[n:]))(t)
			p = records[:n]
		}
		in := http2.NewFramer(nil, bytes.NewReader(p))
		for f, err := in.ReadFrame(); !errors.Is(err, io.EOF); f, err = in.ReadFrame() {
			must.Do(t, err)
			if f.Header().Flags.Has(http2.FlagDataEndStream) && f.Header().Type == http2.FrameData {
				whole++
			}
		}
	}
}

// A turn ends after a number of records, and the rest of its input is not lost: many tiny records
// in one packet, on connections that get no further input and share their turns.
func TestTinyRecords(t *testing.T) { onDrivers(t, testTinyRecords) }

func testTinyRecords(t *testing.T, driver string) {
	s := newStand(t, driver, pings(t), nil, func(cfg *Config) { cfg.Shards = 1 })
	var frames bytes.Buffer
	w := http2.NewFramer(&frames, nil)
	const n = 250 // of 17 bytes: 4,250 records, in two reads
	for i := range byte(n) {
		_ = w.WritePing(false, [8]byte{i})
	}
	check.Same(t, true, len(frames.Bytes()) >= 4*turnRecords && n*budget.Frame <= budget.Burst, "records for several turns, and PINGs for the budget")
	var clients []*http2.Framer
	var sends []func()
	for range 3 {
		c, fr := dialRecords(t, s)
		var records []byte
		for _, b := range frames.Bytes() {
			records = c.appendData(records, []byte{b})
		}
		clients, sends = append(clients, fr), append(sends, func() { must.Do(t, c.send(records)) })
	}
	for _, send := range sends {
		send()
	}
	for _, fr := range clients {
		for i := range byte(n) {
			ponged(t, fr, i)
		}
	}
}
