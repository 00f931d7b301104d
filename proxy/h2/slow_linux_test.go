package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A slow client is not taken for a stalled one: what it reads is noticed even if the socket stays
// full for longer than the stall timeout.
func TestSlowReaderIsNotStalled(t *testing.T) { onRecordDrivers(t, testSlowReaderIsNotStalled) }

func testSlowReaderIsNotStalled(t *testing.T, driver string) {
	const stall = time.Second
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("s"), 32<<20))
	}), nil, func(c *Config) { c.stall = stall })
	raw := must.Get(new(net.Dialer).DialContext(t.Context(), "tcp", s.addr))(t)
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.(*net.TCPConn).SetReadBuffer(64 << 10) // so that the rest waits at the sender
	l := greet(t, tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}))
	const window = 64 << 20
	must.Do(t, errors.Join(l.get("/"), l.fr.WriteWindowUpdate(0, window), l.fr.WriteWindowUpdate(1, window), l.w.Flush()))
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for range 4 * stall / (100 * time.Millisecond) {
		<-pace.C
		if _, err := io.CopyN(io.Discard, raw, 40<<10); err != nil { // raw records
			t.Fatalf("cut off: %v", err)
		}
	}
	select {
	case o := <-s.ended:
		t.Fatalf("ended with %+v", o)
	default:
	}
	select { // it no longer reads
	case o := <-s.ended:
		if o.Reason != ReasonClientLost {
			t.Errorf("ended with %+v", o)
		}
	case <-time.After(10 * stall):
		t.Error("a client that reads nothing is not cut off")
	}
}
