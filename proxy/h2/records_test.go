package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/budget"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/tlsrecords"
)

// onRecordDrivers runs f on the drivers that see TLS records.
func onRecordDrivers(t *testing.T, f func(t *testing.T, driver string)) {
	for _, d := range []string{"portable", "loop"} {
		t.Run(d, func(t *testing.T) { f(t, d) })
	}
}

// dialRecords connects a client that writes its own TLS records, and sends the preface.
func dialRecords(t *testing.T, s *stand) (*tlsrecords.Conn, *http2.Framer) {
	t.Helper()
	c := must.Get(tlsrecords.Dial(t.Context(), s.addr, insecure()))(t)
	t.Cleanup(func() { _ = c.NetConn().Close() })
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	fr := http2.NewFramer(c, c)
	must.Get(io.WriteString(c, http2.ClientPreface))(t)
	must.Do(t, fr.WriteSettings())
	return c, fr
}

// ponged waits for the answer to a PING.
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
func TestKeyUpdateFlood(t *testing.T) { onRecordDrivers(t, testKeyUpdateFlood) }

func testKeyUpdateFlood(t *testing.T, driver string) {
	s := newStand(t, driver, pings(t), nil)
	c, _ := dialRecords(t, s)
	began, sent := time.Now(), 0
	go func() { _, _ = io.Copy(io.Discard, c.NetConn()) }() // discard what TLS answers
	for ; sent < 100_000; sent += 16 {
		var records []byte
		for range 16 {
			records = must.Get(c.AppendKeyUpdate(records, true))(t)
		}
		if c.Send(c.AppendData(records, unanswered())) != nil {
			break
		}
	}
	// It is unknown how many were still in the socket when the connection was closed.
	if n := s.server.shards[0].e.Count.Floods.Load(); n != 1 {
		t.Errorf("%d key updates in %v ended %d connections, want 1", sent, time.Since(began), n)
	}
}

// A client is not charged for rekeying as often as a cautious client may, or for records of one
// byte. TLS answers a key update by itself, which is sent although the engine has nothing to send.
func TestKeyUpdatesInOrder(t *testing.T) { onRecordDrivers(t, testKeyUpdatesInOrder) }

func testKeyUpdatesInOrder(t *testing.T, driver string) {
	s := newStand(t, driver, pings(t), nil)
	c, fr := dialRecords(t, s)
	for n := range byte(100) {
		update := must.Get(c.AppendKeyUpdate(nil, true))(t)
		var ping bytes.Buffer
		_ = http2.NewFramer(&ping, nil).WritePing(false, [8]byte{n})
		for _, b := range ping.Bytes() {
			update = c.AppendData(update, []byte{b})
		}
		must.Do(t, c.Send(update))
		ponged(t, fr, n)
	}
	must.Do(t, c.Send(c.AppendData(must.Get(c.AppendKeyUpdate(nil, true))(t), unanswered())))
	// The answer's content is a message of five bytes, its type and the tag. No frame and no alert
	// has that size.
	record := make([]byte, recordHeader+5+1+16)
	if _, err := io.ReadFull(c.NetConn(), record); err != nil || !bytes.HasPrefix(record, []byte{23, 3, 3, 0, 5 + 1 + 16}) {
		t.Fatalf("no answer to the key update: %x, %v", record, err)
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
	if len(frames.Bytes()) < 4*turnRecords || n*budget.Control > budget.Burst {
		t.Fatal("too few records for several turns, or too many PINGs for the budget")
	}
	var clients [3]*http2.Framer
	var records [len(clients)][]byte
	var conns [len(clients)]*tlsrecords.Conn
	for i := range clients {
		conns[i], clients[i] = dialRecords(t, s)
		for _, b := range frames.Bytes() {
			records[i] = conns[i].AppendData(records[i], []byte{b})
		}
	}
	for i, c := range conns {
		must.Do(t, c.Send(records[i]))
	}
	for _, fr := range clients {
		for i := range byte(n) {
			ponged(t, fr, i)
		}
	}
}

// What TLS writes on its own is bounded if the peer does not take it. Output that is being
// encrypted, or waits for the socket, is no answer of TLS, however much it is.
func TestOutputIsNoAnswerOfTLS(t *testing.T) {
	raw, server, _, _ := heldTLS(t, tls.VersionTLS13) // over a pipe, which takes nothing without blocking
	write := func(n int) { must.Get(server.Write(make([]byte, n)))(t) }
	write(maxOwn / 2)
	must.Do(t, raw.flushOwn())
	raw.reserve(2 * maxOwn)
	write(2 * maxOwn)
	must.Do(t, raw.flushOwn())
	done, err := raw.flushOr([]byte("output"))
	if done || err != nil || raw.flushOwn() != nil {
		t.Errorf("output that waits: done %v, %v, then %v", done, err, raw.flushOwn())
	}
	raw.pending = nil
	if err := raw.flushOwn(); !errors.Is(err, errOwnOutput) {
		t.Errorf("the rest is TLS's own: %v", err)
	}
}
