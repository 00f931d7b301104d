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

// A client that reads slowly is not one that has stopped: what it takes is seen although the socket
// has no room for longer than a stall may last.
func TestSlowReaderIsNotStalled(t *testing.T) { onRecordDrivers(t, testSlowReaderIsNotStalled) }

func testSlowReaderIsNotStalled(t *testing.T, driver string) {
	const stall = time.Second
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("s"), 32<<20))
	}), nil, func(c *Config) { c.stall = stall })
	raw := must.Get(new(net.Dialer).DialContext(t.Context(), "tcp", s.addr))(t)
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.(*net.TCPConn).SetReadBuffer(64 << 10) // so that it waits at the other end
	l := greet(t, tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}))
	const window = 64 << 20
	must.Do(t, errors.Join(l.get("/"), l.fr.WriteWindowUpdate(0, window), l.fr.WriteWindowUpdate(1, window), l.w.Flush()))
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for range 4 * stall / (100 * time.Millisecond) {
		<-pace.C
		if _, err := io.CopyN(io.Discard, raw, 40<<10); err != nil { // the records as they are
			t.Fatalf("cut off: %v", err)
		}
	}
	select {
	case o := <-s.ended:
		t.Fatalf("ended with %+v", o)
	default:
	}
	select { // it reads no more
	case o := <-s.ended:
		if o.Reason != ReasonClientLost {
			t.Errorf("ended with %+v", o)
		}
	case <-time.After(10 * stall):
		t.Error("a client that takes nothing is not cut off")
	}
}
