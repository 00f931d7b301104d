package main

import (
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// If one port cannot be opened, the start fails and closes the other.
func TestFailedStartClosesItsPort(t *testing.T) {
	there := aloneDoor(t)
	o := *there.o
	o.adminPort = there.adminListener.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	d := &door{o: &o, log: slog.New(slog.DiscardHandler), metrics: prometheus.NewRegistry()}
	if err := d.build(t.Context()); err == nil {
		t.Fatal("two doors listen on one port")
	}
	if conn, err := net.Dial("tcp", d.frontListener.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the front port is still open")
	}
}

// A loop that does not end, because a plugin hangs, delays the end of this process by a bound.
func TestLoopThatDoesNotEnd(t *testing.T) {
	d := &door{log: slog.New(slog.DiscardHandler)}
	fault, stopped := errors.New("listening"), make(chan struct{})
	close(stopped)
	for loops, want := range map[time.Duration]error{0: fault, lastWait - time.Second: fault, time.Hour: nil} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			if err := d.ended(func() error { <-time.After(loops); return fault }, stopped); !errors.Is(err, want) {
				t.Errorf("loops that end after %v: %v, want %v", loops, err, want)
			}
			check.Same(t, min(loops, lastWait), time.Since(begun), "the delay")
			<-time.After(loops) // a bubble waits for its goroutines
		})
	}
}
