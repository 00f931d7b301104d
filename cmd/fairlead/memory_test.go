package main

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestKeepSmall(t *testing.T) {
	before := debug.SetGCPercent(77) // as if set by the environment at the start
	defer debug.SetGCPercent(before)
	t.Setenv("GOGC", "200")
	if m := keepSmall(); m != nil || debug.SetGCPercent(77) != 77 {
		t.Error("the operator's own GOGC is not kept")
	}
	os.Unsetenv("GOGC") // Setenv restores it
	m, was := keepSmall(), readHeap()
	check.Same(t, gcPercent, debug.SetGCPercent(77), "collecting at")
	for _, live := range []uint64{largeHeap, largeHeap - 1} {
		m.look(heap{cycles: 1, live: live, objects: live})
		check.Same(t, map[bool]int{true: gcLarge, false: gcPercent}[live == largeHeap], debug.SetGCPercent(-1), "collecting with %d live bytes", live)
	}
	if m.give(); readHeap().cycles == was.cycles {
		t.Error("memory is given back without a collection")
	}
	if h := readHeap(); h.live == 0 || h.objects == 0 || h.objects > 1<<40 {
		t.Errorf("heap is %+v", h)
	}
}

// A container may be resized in place.
func TestLimitFollows(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "") // restores it
	os.Unsetenv("GOMEMLIMIT")
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	if now, err := memlimit.Set(); err == nil { // else this machine has no cgroups
		debug.SetMemoryLimit(now/2 + 1)
		followLimit()
		check.Same(t, now, debug.SetMemoryLimit(-1), "the limit of a container that has had another one")
	}
}

// The process's own collection, of an earlier look, does not make it busy. Memory of a burst is
// returned only after a garbage collection has made it visible.
func TestGiveBack(t *testing.T) {
	const mb = 1 << 20
	looks := func(objects, free uint64, cycles ...uint64) (all []heap) {
		for _, n := range cycles {
			all = append(all, heap{n, 50 * mb, objects, free})
		}
		return all
	}
	for _, tt := range []struct {
		name  string
		looks []heap // after one with 7 cycles
		given []int  // so far
	}{
		{"garbage after a burst", looks(90*mb, 0, 7, 8), []int{1, 2}},
		{"memory that nobody uses", looks(51*mb, 40*mb, 7, 8), []int{1, 2}},
		{"busy: it was collected meanwhile", looks(90*mb, 40*mb, 8), []int{0}},
		{"little", []heap{{7, 10 * mb, 11 * mb, mb / 2}}, []int{0}},
		{"little of much", []heap{{7, 500 * mb, 530 * mb, 30 * mb}}, []int{0}},
		{"collected while it was looked", looks(49*mb, 0, 7), []int{0}},
		{"a burst", looks(50*mb, 0, 8, 8, 10, 11, 11, 12, 12, 13, 13), []int{0, 0, 0, 0, 1, 1, 1, 1, 1}},
	} {
		n, given := 0, []int(nil)
		m := &memory{give: func() { n++ }, last: heap{cycles: 7}}
		for _, now := range tt.looks {
			m.look(now)
			given = append(given, n)
		}
		check.Same(t, tt.given, given, "%s: memory given back", tt.name)
	}
}

// On either port, the heads of one address leave most of the memory to others.
func TestHeadsOfOneAddress(t *testing.T) {
	const limit = 32 << 20
	d := aloneDoor(t)
	d.held.Add(d.held.Limit() - limit)
	d.start(t)
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}}
	for port, l := range map[string]*front.Listener{"front": d.ports.front, "admin": d.ports.admin} {
		var conns []net.Conn
		for range 60 {
			conn := must.Get(dialer.DialContext(t.Context(), "tcp", l.Addr().String()))(t)
			conns = append(conns, conn)
			must.Get(io.WriteString(conn, http2.ClientPreface))(t)
			fr := http2.NewFramer(conn, conn)
			_ = fr.WriteSettings() // a refused head ends the connection
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 16<<10)})
			for range 20 {
				_ = fr.WriteContinuation(1, false, make([]byte, 16<<10))
			}
		}
		for range 20 { // the loop reads the heads meanwhile
			must.Get(clientOf(t, true, nil).Get(urlOf(l) + "/livez"))(t).Body.Close()
		}
		check.Same(t, true, 4*d.held.Share() >= limit*2/3, "%s: of %d bytes, a share of %d is left", port, limit, d.held.Share())
		for _, conn := range conns {
			_ = conn.Close()
		}
		must.Soon(t, 10*time.Second, "all is given back", func() bool { return 4*d.held.Share() > limit-hold.Least })
	}
}
