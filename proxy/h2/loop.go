package h2

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// loop is the goroutine that reads all connections of a shard. One turn of it takes every connection that has input,
// has the engine handle all of it, and then writes each connection that has output once: what came on many connections
// leaves in few system calls, and no goroutine is woken for each. It runs from Server.Run until close. The connections'
// descriptors are watched by an epoll instance of its own, and that one by Go's netpoller: waiting costs no thread, and
// a thread in epoll_wait gathers less in a turn (docs/evidence/measurements.md).
type loop struct {
	sh   *shard
	fd   int
	file *os.File // the epoll instance

	mu    sync.Mutex // guards what follows
	done  bool       // close was called
	dead  error      // why no link is watched any more; nil while they are
	links []*link    // by descriptor: a map lookup for each event was visible in profiles

	// For the loop's goroutine only.
	events [loopEvents]syscall.EpollEvent
	active []active // connections with something to do in this turn
	next   []active // connections for the next turn, even without an event
	heads  int      // clients' field blocks handled in this turn
	in     [rawBuffer]byte
	plain  [plainBuffer]byte
}

// active is a connection with its epoll events.
type active struct {
	l  *link
	ev uint32
}

const (
	// loopEvents is how many connections are read before anything is written: enough for a batch,
	// few enough that the first does not wait long.
	loopEvents = 128
	// loopPolls is how often epoll is polled before anything is written. While some are read others may get input, and
	// each turn less saves system calls on both sides. Each costs the first input 20 µs. One alone is not polled for.
	loopPolls = 4
	// loopHeads is how many of clients' field blocks are handled before anything is written: about two milliseconds.
	loopHeads = 256
	// Edge-triggered: no system call before a wait or for a full socket. EPOLLET is negative on amd64, not on arm64.
	loopInterest = syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | syscall.EPOLLET&(1<<32-1)
	loopEnd      = syscall.EPOLLRDHUP | syscall.EPOLLHUP | syscall.EPOLLERR
)

// newLoop returns a loop. If there can be none, its run says why.
func newLoop(sh *shard) *loop {
	lp := &loop{sh: sh}
	var err error
	if lp.fd, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		lp.dead = os.NewSyscallError("epoll_create1", err)
		return lp
	}
	_ = syscall.SetNonblock(lp.fd, true) // so that os.NewFile adds it to the netpoller
	lp.file = os.NewFile(uintptr(lp.fd), "epoll")
	return lp
}

// run serves connections until close. If it cannot wait for input it closes all connections, and returns why.
func (lp *loop) run() error {
	err := fmt.Errorf("waiting for connections: %w", cmp.Or(lp.dead, lp.wait()))
	lp.mu.Lock()
	lp.dead = err
	done, links := lp.done, slices.Clone(lp.links)
	lp.mu.Unlock()
	if done {
		return nil
	}
	for _, l := range links {
		if l != nil {
			lp.end(l, err)
		}
	}
	lp.sh.lock()
	lp.sh.settle()
	return err
}

func (lp *loop) wait() error {
	raw, err := lp.file.SyscallConn()
	if err != nil {
		return err // closed before it began, or never made
	}
	// All turns run within one Read: it forgets earlier events, and an edge-triggered event comes only once.
	var failed error
	err = raw.Read(func(uintptr) bool { //fairlead:boundary where the loop waits
		for more := true; more; {
			more, failed = lp.takeTurn()
		}
		return failed != nil
	})
	return cmp.Or(failed, err)
}

// takeTurn reads all connections with input and then writes the output. It reports whether there
// may be more input for which epoll has no event any more.
func (lp *loop) takeTurn() (more bool, err error) {
	lp.heads = 0
	for polls := 1; ; polls++ {
		n, err := epollPoll(lp.fd, lp.events[:])
		interrupted := errors.Is(err, syscall.EINTR)
		if err != nil && !interrupted {
			return false, err
		}
		if n = max(n, 0); n > 0 || len(lp.next) > 0 {
			lp.serve(lp.events[:n])
		}
		more = interrupted || n == len(lp.events) || len(lp.next) > 0
		if n <= 1 || polls == loopPolls || lp.heads >= loopHeads {
			break
		}
	}
	lp.sh.lock()
	lp.sh.settle()
	return more, nil
}

// close ends run. There must be no connections left.
func (lp *loop) close() {
	lp.mu.Lock()
	lp.done = true
	lp.mu.Unlock()
	_ = lp.file.Close()
}

func (lp *loop) serve(events []syscall.EpollEvent) {
	lp.active = lp.active[:0]
	for _, t := range lp.next {
		lp.add(t)
	}
	lp.next = lp.next[:0]
	lp.mu.Lock()
	for i := range events {
		if l := lp.links[events[i].Fd]; l != nil {
			lp.add(active{l, events[i].Events})
		}
	}
	lp.mu.Unlock()
	for i, t := range lp.active {
		if t.ev&syscall.EPOLLOUT != 0 { // output that the socket did not accept
			if p, err := t.l.raw.resume(); p != nil {
				lp.sh.lock()
				t.l.finishWrite(p, err)
				lp.sh.mu.Unlock() // settled with the rest of this turn
			}
		}
		if t.ev&^syscall.EPOLLOUT != 0 || t.l.hasInput() {
			t.l.heads = 0
			lp.read(t)
			lp.heads += t.l.heads
		}
		if lp.heads >= loopHeads { // the others come first in the next turn
			lp.next = slices.Insert(lp.next, 0, lp.active[i+1:]...)
			break
		}
	}
	clear(lp.active)
}

// add gives a connection one place in the turn, even if it has several events.
func (lp *loop) add(t active) {
	if at := t.l.at; at < len(lp.active) && lp.active[at].l == t.l {
		lp.active[at].ev |= t.ev
		return
	}
	t.l.at = len(lp.active)
	lp.active = append(lp.active, t)
}

// read reads one buffer of input, or continues with one.
func (lp *loop) read(t active) {
	l, r := t.l, t.l.raw
	if r.fd < 0 || l.paused.Load() && t.ev&loopEnd == 0 {
		return // closed in this turn, or paused
	}
	n, err, again := 0, error(nil), l.hasInput()
	if !again {
		n, err = sysRead(r.fd, lp.in[:])
		r.rest = lp.in[:max(n, 0)]
	}
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return
	case err == nil && len(r.rest) == 0 && !again:
		err = io.EOF
	case err == nil:
		err = l.decrypt(lp.plain[:])
	}
	switch {
	case err != nil:
		lp.end(l, err)
		return
	case len(r.rest) == 0:
		r.rest = nil
	case !again: // it is a part of lp.in
		r.rest = slices.Clone(r.rest)
	}
	// Otherwise the socket is empty, and later input is a new event.
	if again || l.hasInput() || n == len(lp.in) || t.ev&loopEnd != 0 {
		lp.next = append(lp.next, t)
	}
}

func (lp *loop) own(r *rawConn) error {
	var fd int
	var err error
	if r.sock != nil {
		fd, err = duplicate(r.sock)
	} else {
		fd, err = bridge(r.Conn)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fd, r.early, r.spare, r.quiet, r.most = fd, nil, &lp.sh.pool.out, 0, maxQuiet
	r.owned.Store(true)
	return nil
}

// duplicate duplicates a socket's descriptor and closes the original, for which the netpoller would wake, too.
func duplicate(s socket) (fd int, err error) {
	sys, err := s.SyscallConn()
	if err != nil {
		return -1, err
	}
	cerr := sys.Control(func(s uintptr) { fd, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(cerr, err); err != nil {
		return -1, err
	}
	_ = s.Close()
	return fd, nil
}

// bridge returns a socket that stands for a connection that is none, such as a tunnel of an egress
// selector. Its goroutines end with the connection, and hold a record each.
func bridge(c net.Conn) (fd int, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socketpair", err)
	}
	far := os.NewFile(uintptr(pair[1]), "bridge")
	var output sync.WaitGroup
	output.Go(func() {
		buffer := make([]byte, recordContent)
		if _, err := io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{far}, buffer); err != nil {
			_ = c.Close() // ends the other direction
		}
	})
	go func() {
		_, _ = io.CopyBuffer(struct{ io.Writer }{far}, struct{ io.Reader }{c}, make([]byte, recordContent))
		_ = syscall.Shutdown(pair[1], syscall.SHUT_WR) // the loop sees the end, and closes both
		output.Wait()
		_ = far.Close()
	}()
	return pair[0], nil
}

// watch begins to serve a link whose connection is owned: takeTurn reads and writes it. If that is not possible it ends
// the link. The first event, that the socket takes output, also has the loop handle input that came with the handshake.
func (lp *loop) watch(l *link) {
	fd := l.raw.fd
	lp.mu.Lock()
	if more := fd + 1 - len(lp.links); more > 0 {
		lp.links = append(lp.links, make([]*link, more)...)
	}
	lp.links[fd] = l
	err := lp.dead
	if err == nil { // under the mutex, so that either run ends the link when it fails, or watch does
		ev := &syscall.EpollEvent{Events: loopInterest, Fd: int32(fd)}
		err = os.NewSyscallError("epoll_ctl", syscall.EpollCtl(lp.fd, syscall.EPOLL_CTL_ADD, fd, ev))
	}
	if err != nil {
		lp.links[fd] = nil
	}
	lp.mu.Unlock()
	if err != nil {
		lp.end(l, err)
	}
}

// end closes a connection. A watched descriptor is closed only here: another connection may get its number.
func (lp *loop) end(l *link, err error) {
	r := l.raw
	lp.mu.Lock()
	if r.fd >= 0 && r.fd < len(lp.links) { // else it was never watched
		lp.links[r.fd] = nil
	}
	lp.mu.Unlock()
	p := lp.disown(r)
	r.rest, l.rest = nil, nil
	lp.sh.lock()
	if p != nil {
		l.finishWrite(p, err)
	}
	lp.sh.e.Ended(l.c, err)
	lp.sh.settle()
	close(l.gone)
}

// disown closes the descriptor, and returns the output that waited for the socket.
func (lp *loop) disown(r *rawConn) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = syscall.Close(r.fd)
	p := r.pending
	r.fd, r.pending = -1, nil
	return p
}
