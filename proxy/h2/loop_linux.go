package h2

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
)

// loop is the goroutine that reads all connections of a shard. One turn of it takes every connection that has input, has the engine
// handle all of it, and then writes each connection that has output once: what came on many connections leaves in few system calls,
// and no goroutine is woken for each. It runs from Server.Run until close.
//
// The connections' descriptors are watched by an epoll instance of its own, and that one by Go's netpoller: waiting costs no thread, and a
// thread in epoll_wait gathers less in a turn (docs/performance.md).
type loop struct {
	sh   *shard
	fd   int
	file *os.File // the epoll instance

	mu    sync.Mutex // guards what follows
	done  bool       // close was called
	dead  error      // why no link is watched any more; nil: they are
	links []*link    // by descriptor: a map's look-up for each event showed in profiles

	// Of the goroutine alone.
	events [loopEvents]syscall.EpollEvent
	turn   []turn // connections with something to do
	again  []turn // and in the next turn, whatever epoll says
	heads  int    // field blocks of clients that were handled since output was written
	in     rawBytes
	plain  plainBytes
}

// turn is a connection and what epoll says of it.
type turn struct {
	l  *link
	ev uint32
}

const (
	// loopEvents is how many connections are read before anything is written: enough to batch, few enough not to make the first wait.
	loopEvents = 128
	// loopPolls is how often epoll is asked before anything is written: while some connections were read others may have got input, and each round that
	// is spared saves system calls on both sides. What came first waits for that, 20 µs or so each time. With one connection there is nothing to wait for.
	loopPolls = 4
	// roundHeads is how many field blocks of clients are handled before anything is written: two milliseconds or so. Sixty-four connections with four requests each
	// are still one round.
	roundHeads = 256
	// Edge-triggered: nothing has to be asked again before waiting, and a full socket needs no system call to watch it.
	loopInterest = syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | -syscall.EPOLLET // the package's constant is negative
	loopEnd      = syscall.EPOLLRDHUP | syscall.EPOLLHUP | syscall.EPOLLERR
)

func newLoop(sh *shard) (*loop, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // what makes os.NewFile hand it to the netpoller
		_ = syscall.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &loop{sh: sh, fd: fd, file: os.NewFile(uintptr(fd), "epoll")}, nil
}

// run serves connections until close. If they cannot be waited for it ends all of them, and returns why.
func (lp *loop) run() error {
	err := fmt.Errorf("waiting for connections: %w", lp.wait())
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
		return err // closed before it began
	}
	// All of it happens in one call: Read forgets what the netpoller has seen when it begins, and edge-triggered it says so once.
	var failed error
	err = raw.Read(func(uintptr) bool {
		for {
			more, err := lp.round()
			if err != nil {
				failed = err
				return true
			}
			if !more {
				return false
			}
		}
	})
	return cmp.Or(failed, err)
}

// round reads whatever has input and then writes what came of it; more: there may be more input of which epoll says nothing any more.
func (lp *loop) round() (more bool, err error) {
	lp.heads = 0
	for polls := 1; ; polls++ {
		n, err := epollPoll(lp.fd, lp.events[:])
		interrupted := errors.Is(err, syscall.EINTR)
		if err != nil && !interrupted {
			return false, err
		}
		if n = max(n, 0); n > 0 || len(lp.again) > 0 {
			lp.serve(lp.events[:n])
		}
		more = interrupted || n == len(lp.events) || len(lp.again) > 0
		if n <= 1 || polls == loopPolls || lp.heads >= roundHeads {
			break
		}
	}
	lp.sh.lock()
	lp.sh.settle()
	return more, nil
}

// close ends run. No connection may be left.
func (lp *loop) close() {
	lp.mu.Lock()
	lp.done = true
	lp.mu.Unlock()
	_ = lp.file.Close()
}

// serve reads the connections that have input.
func (lp *loop) serve(events []syscall.EpollEvent) {
	lp.turn = lp.turn[:0]
	for _, t := range lp.again {
		lp.add(t)
	}
	lp.again = lp.again[:0]
	lp.mu.Lock()
	for i := range events {
		if l := lp.links[events[i].Fd]; l != nil {
			lp.add(turn{l, events[i].Events})
		}
	}
	lp.mu.Unlock()
	for i, t := range lp.turn {
		if t.ev&syscall.EPOLLOUT != 0 {
			lp.write(t.l)
		}
		if t.ev&^syscall.EPOLLOUT != 0 || t.l.begun() {
			t.l.took = 0
			lp.read(t)
			lp.heads += t.l.took
		}
		if lp.heads >= roundHeads { // the others come first in the next round
			lp.again = slices.Insert(lp.again, 0, lp.turn[i+1:]...)
			break
		}
	}
	clear(lp.turn)
}

// add gives a connection a turn, and only one, whatever it sends while its input waits.
func (lp *loop) add(t turn) {
	if at := t.l.at; at < len(lp.turn) && lp.turn[at].l == t.l {
		lp.turn[at].ev |= t.ev
		return
	}
	t.l.at = len(lp.turn)
	lp.turn = append(lp.turn, t)
}

// read takes one buffer of input in, or goes on with one.
func (lp *loop) read(t turn) {
	l, r := t.l, t.l.raw
	if r.fd < 0 || l.paused.Load() && t.ev&loopEnd == 0 {
		return // ended in this round, or unpause brings it back
	}
	n, err, again := 0, error(nil), l.begun()
	if !again {
		n, err = sysRead(r.fd, lp.in[:])
		r.rest = lp.in[:max(n, 0)]
	}
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return
	case errors.Is(err, syscall.EINTR):
		lp.again = append(lp.again, t)
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
	case len(r.rest) > 0:
		r.keep(lp.sh.pool)
	default:
		r.rest = nil
		r.drop(lp.sh.pool)
	}
	if again || l.begun() || n == len(lp.in) || t.ev&loopEnd != 0 { // else the socket is empty, and what comes later is a new event
		lp.again = append(lp.again, t)
	}
}

// write goes on with output that the socket did not take.
func (lp *loop) write(l *link) {
	p, err := l.raw.resume()
	if p == nil {
		return
	}
	lp.sh.lock()
	l.finishWrite(p, err)
	lp.sh.mu.Unlock() // settled with everything else of this round
}

// own takes a connection over. Its descriptor is duplicated: as long as the original lived, the netpoller would wake for it too.
func (lp *loop) own(r *rawConn) error {
	fd, err := -1, error(nil)
	cerr := r.sys.Control(func(s uintptr) {
		n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, s, syscall.F_DUPFD_CLOEXEC, 0)
		if errno != 0 {
			err = os.NewSyscallError("fcntl", errno)
			return
		}
		fd = int(n)
	})
	if err := errors.Join(cerr, err); err != nil {
		return err
	}
	_ = r.sock.Close()
	r.mu.Lock()
	r.fd, r.owned = fd, true
	r.mu.Unlock()
	return nil
}

// watch begins to serve a link whose connection is owned. A link that cannot be watched has ended.
func (lp *loop) watch(l *link) {
	fd := l.raw.fd
	for len(l.raw.rest) > 0 || len(l.rest) > 0 { // came with the handshake
		if err := l.decrypt(make([]byte, blockingBuffer)); err != nil {
			lp.end(l, err)
			return
		}
		lp.sh.lock()
		lp.sh.settle()
	}
	lp.mu.Lock()
	if more := fd + 1 - len(lp.links); more > 0 {
		lp.links = append(lp.links, make([]*link, more)...)
	}
	lp.links[fd] = l
	err := lp.dead
	if err == nil { // under the mutex: either run ends the link when it fails, or this does
		err = os.NewSyscallError("epoll_ctl", syscall.EpollCtl(lp.fd, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: loopInterest, Fd: int32(fd)}))
	}
	if err != nil {
		lp.links[fd] = nil
	}
	lp.mu.Unlock()
	if err != nil {
		lp.end(l, err)
	}
}

// unpause has the loop look at a connection again that was not read for a while. The shard's mutex is held.
func (lp *loop) unpause(l *link) {
	l.paused.Store(false)
	l.raw.mu.Lock()
	if fd := l.raw.fd; fd >= 0 {
		_ = syscall.EpollCtl(lp.fd, syscall.EPOLL_CTL_MOD, fd, &syscall.EpollEvent{Events: loopInterest, Fd: int32(fd)})
	}
	l.raw.mu.Unlock()
}

// end closes a connection. Only here descriptors are closed, so that none is used after another connection has got its number.
func (lp *loop) end(l *link, err error) {
	r := l.raw
	lp.mu.Lock()
	if r.fd >= 0 && r.fd < len(lp.links) { // else it was never watched
		lp.links[r.fd] = nil
	}
	lp.mu.Unlock()
	p := lp.disown(r)
	r.rest, l.rest = nil, nil
	r.drop(lp.sh.pool)
	lp.sh.lock()
	if p != nil {
		l.finishWrite(p, err)
	}
	l.lose(err)
	close(l.gone)
}

// disown closes the descriptor, and returns the output that waited for room.
func (lp *loop) disown(r *rawConn) []byte {
	defer r.Conn.Close() // its socket is closed already: for those who wrapped it
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = syscall.Close(r.fd)
	p := r.pending
	r.fd, r.pending = -1, nil
	return p
}
