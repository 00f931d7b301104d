package front

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Of the processes that share a port (SO_REUSEPORT), the oldest gets all new connections until it hands over to the
// newest. The kernel alone would spread them by a hash, also to one that is not ready. When a socket is closed, it
// resets those that are not accepted yet, and those in a handshake, unless net.ipv4.tcp_migrate_req is set. A BPF
// program chooses instead, by the order of the sockets: that of listening, but the last takes a closed one's place.

const settle = 2 * time.Second // how long a socket stays open after another has taken over: TCP resends after a second

func share(_, _ string, c syscall.RawConn) (err error) {
	failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return cmp.Or(failed, err)
}

// HandOver gives new connections to the process that shares the port and was the last to listen, if that was after
// this one. It returns for how long this one must still accept.
func (l *Listener) HandOver() time.Duration {
	if l.known == nil {
		return 0
	}
	all := l.sharers()
	if !slices.ContainsFunc(all, func(inode string) bool { return !slices.Contains(l.known, inode) }) {
		return 0
	}
	l.choose(len(all) - 1)
	return settle
}

// choose chooses the socket with an index for new connections. If there is none, as when it is closed, the hash counts.
func (l *Listener) choose(index int) {
	returns := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(index)} //nolint:gosec // a handful
	program := unix.SockFprog{Len: 1, Filter: &returns}
	raw, err := l.Listener.(syscall.Conn).SyscallConn() //nolint:forcetypeassert // of TCP
	if err == nil {
		failed := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program)
		})
		err = cmp.Or(failed, err)
	}
	if err != nil {
		l.log.Warn("choosing a process for new connections: the kernel does", "port", l.port, "err", err)
	}
}

// sharers returns the inodes of all sockets that listen at this address, as /proc/net/tcp has them (proc_pid_net(5)).
func (l *Listener) sharers() (inodes []string) {
	at := l.Addr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // see Listen
	address := at.Addr().AsSlice()
	for part := range slices.Chunk(address, 4) {
		binary.BigEndian.PutUint32(part, binary.NativeEndian.Uint32(part))
	}
	line := regexp.MustCompile(fmt.Sprintf(`: %X:%04X 0+:0000 0A \S+ \S+ \S+ +\d+ +\d+ (\d+) `, address, at.Port()))
	for _, file := range []string{"tcp", "tcp6"} {
		text, _ := os.ReadFile("/proc/thread-self/net/" + file)
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			inodes = append(inodes, m[1])
		}
	}
	return inodes
}
