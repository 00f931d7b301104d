//go:build e2e

package hostile

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// lame is a peer that begins something and stalls, or almost.
type lame struct {
	name  string
	proto string        // what it negotiates; empty: no TLS at all
	say   string        // what it sends first
	drip  string        // what it sends again every half second until cut off
	bound time.Duration // for how long the connection lives
}

// slack allows for the ticks that enforce bounds, a second apart at most, and as much again for a
// busy machine.
const slack = 2 * time.Second

func lames() []lame {
	const (
		head = 32 * time.Second // kube-apiserver's ReadHeaderTimeout, also of the handshake
		h2   = 10 * time.Second // the engine's for prefaces and heads; net/http's for prefaces
		rest = 5 * time.Second  // for the rest of a body after the answer
		asks = 2 * time.Second  // the request's own timeout
	)
	post := func(fields string) string {
		return "POST " + target + "?timeout=2s HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n"
	}
	return []lame{
		{name: "no handshake", bound: head},
		{name: "half a head over HTTP/1.1", proto: "http/1.1", say: "GET / HTTP/1.1\r\nHost: x\r\n", drip: "X: y\r\n", bound: head},
		{name: "no preface over HTTP/2", proto: "h2", bound: h2},
		{name: "a body that drips", proto: "http/1.1", say: post("Content-Length: 100000\r\n"), drip: "x", bound: asks + rest},
		{name: "a body that nobody wants", proto: "http/1.1", say: strings.Replace(post("Authorization: Basic eDp5\r\nContent-Length: 100000\r\n"), target, "/nowhere", 1), drip: "x", bound: rest},
	}
}

// testSlow opens several connections of each kind at once, and checks how long they live.
func testSlow(t *testing.T, d *door) {
	for _, l := range lames() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			var peers sync.WaitGroup
			for range 20 {
				peers.Go(func() {
					took, err := d.outlive(t.Context(), l)
					if err != nil || took < l.bound-slack || took > l.bound+slack { // sooner than its bound, it was cut for another reason
						t.Errorf("cut after %s, want %s: %v", took, l.bound, err)
					}
				})
			}
			peers.Wait()
		})
	}
}

// outlive returns how long a lame peer's connection lives.
func (d *door) outlive(ctx context.Context, l lame) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 70*time.Second)
	defer cancel()
	begun := time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", d.Front)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if l.proto != "" {
		as := d.w.as("lame")
		as.NextProtos, as.ServerName = []string{l.proto}, "localhost"
		t := tls.Client(conn, as)
		if err := t.HandshakeContext(ctx); err != nil {
			return 0, err
		}
		conn = t
		begun = time.Now()
	}
	if _, err := io.WriteString(conn, l.say); err != nil {
		return 0, err
	}
	for ctx.Err() == nil {
		if err := conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
			return 0, err
		}
		if _, err := io.Copy(io.Discard, conn); !errors.Is(err, os.ErrDeadlineExceeded) {
			return time.Since(begun), nil
		}
		if _, err := io.WriteString(conn, l.drip); err != nil {
			return time.Since(begun), nil
		}
	}
	return time.Since(begun), fmt.Errorf("the connection is still open")
}
