package extension

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// listener is a TCP listener that can be closed and reopened on the same port.
//
// A second socket is bound to the port but never listens: while the listener is closed, connections
// are refused as after the death of a process, and no other process can get the port.
type listener struct {
	addr   string
	port   int
	accept func(net.Conn)
	hold   *os.File

	wg sync.WaitGroup // the accepting goroutine

	mu    sync.Mutex   // guards the fields below
	ln    net.Listener // nil: closed
	conns map[*connection]struct{}
	done  bool
}

// newListener reserves address; open makes it accept.
func newListener(address string, accept func(net.Conn)) (*listener, error) {
	hold, port, err := holdPort(address)
	if err != nil {
		return nil, fmt.Errorf("holding port of %s: %w", address, err)
	}
	host, _, _ := net.SplitHostPort(address)
	return &listener{
		addr: net.JoinHostPort(host, strconv.Itoa(port)), port: port, accept: accept, hold: hold, conns: map[*connection]struct{}{},
	}, nil
}

// holdPort binds a socket to an IPv4 address, without listening.
func holdPort(address string) (hold *os.File, port int, err error) {
	defer try.Catch(&err)
	tcp := try.Get(net.ResolveTCPAddr("tcp4", address))
	syscall.ForkLock.RLock() // macOS has no SOCK_CLOEXEC
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	syscall.CloseOnExec(fd)
	syscall.ForkLock.RUnlock()
	try.Do(err)
	hold = os.NewFile(uintptr(fd), address) // closed at the latest when it is collected
	sa := &syscall.SockaddrInet4{Port: tcp.Port}
	copy(sa.Addr[:], tcp.IP.To4())
	try.Do(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	try.Do(syscall.Bind(fd, sa))
	return hold, try.Get(syscall.Getsockname(fd)).(*syscall.SockaddrInet4).Port, nil
}

// open starts to accept, unless it already does.
func (l *listener) open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln != nil || l.done {
		return nil
	}
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", l.addr)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	l.ln = ln
	l.wg.Go(func() {
		for {
			c, err := ln.Accept() // ends when ln is closed
			if err != nil {
				return
			}
			l.accept(c)
		}
	})
	return nil
}

// refuse closes the port. With cut, it also resets open connections, like the death of a process.
func (l *listener) refuse(cut bool) {
	l.mu.Lock()
	if l.ln != nil {
		l.ln.Close()
		l.ln = nil
	}
	all := slices.Collect(maps.Keys(l.conns)) // a copy, because closing one takes the lock
	l.mu.Unlock()
	if cut {
		for _, c := range all {
			c.rst()
		}
	}
	l.wg.Wait()
}

func (l *listener) close() {
	l.mu.Lock()
	l.done = true
	l.mu.Unlock()
	l.refuse(true)
	l.hold.Close()
}

// add registers c; it returns false if the port is closed.
func (l *listener) add(c *connection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// 20,000 connections: more than any test opens, and few enough for the machine.
	if l.ln == nil || len(l.conns) >= 20_000 {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *listener) remove(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}
