package h2

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Peers are processes of this test binary, so that their costs are measured separately. roleEnv
// selects the role. A peer prints its address, prints its usage for each line on standard input,
// and exits at the end of the input.
const roleEnv = "FAIRLEAD_H2_PEER"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := runPeer(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// usage is what a process has used since its start.
type usage struct {
	CPU     time.Duration
	Mallocs uint64
	RSS     int64 // bytes, after a garbage collection
}

// runPeer runs "backend", "rp=<backend>", "portable=<backend>" or "loop=<backend>".
func runPeer(role string) error {
	kind, backend, _ := strings.Cut(role, "=")
	var addr string
	switch kind {
	case "backend":
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addr = l.Addr().String()
		go serveLean(l)
	case "rp":
		addr = startReverseProxy(backend)
	default:
		addr = startLane(kind, backend)
	}
	fmt.Println(addr) //nolint:forbidigo // the parent reads it
	stop, err := profile(kind)
	if err != nil {
		return err
	}
	defer stop()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		u, err := measure(in.Text() == "gc")
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(u); err != nil {
			return err
		}
	}
	return nil
}

// profile writes the CPU and allocation profiles of the peer that $FAIRLEAD_H2_PROFILE names to
// <role>.cpu and <role>.mem.
func profile(kind string) (func(), error) {
	if os.Getenv("FAIRLEAD_H2_PROFILE") != kind {
		return func() {}, nil
	}
	f, err := os.Create(kind + ".cpu")
	if err != nil {
		return nil, err
	}
	runtime.MemProfileRate = 1
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
		if m, err := os.Create(kind + ".mem"); err == nil {
			_ = pprof.Lookup("allocs").WriteTo(m, 0)
			_ = m.Close()
		}
	}, nil
}

func measure(gc bool) (usage, error) {
	if gc {
		for range 3 { // pools are emptied in two collections
			runtime.GC()
		}
	}
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return usage{}, err
	}
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	u := usage{CPU: time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), Mallocs: ms.Mallocs}
	b, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		var size, resident int64
		_, err = fmt.Sscan(string(b), &size, &resident)
		u.RSS = resident * int64(os.Getpagesize())
	}
	return u, err
}

// peerProcess is a running peer.
type peerProcess struct {
	addr string
	in   io.Writer
	out  *bufio.Reader
}

func startPeer(t testing.TB, role string) *peerProcess {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0]) // exits at the end of its standard input
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	p := &peerProcess{in: in, out: bufio.NewReader(out)}
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("peer %s: %v", role, err)
	}
	p.addr = strings.TrimSpace(line)
	return p
}

func (p *peerProcess) usage(t testing.TB, how string) usage {
	t.Helper()
	must.Get(io.WriteString(p.in, how+"\n"))(t)
	var u usage
	must.Do(t, json.Unmarshal(must.Get(p.out.ReadBytes('\n'))(t), &u))
	return u
}
