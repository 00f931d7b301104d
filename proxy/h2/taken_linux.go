package h2

import "golang.org/x/sys/unix"

// taken is how many bytes the peer has acknowledged. What our own socket takes says little, since it
// holds megabytes. 0: it is not known.
func (r *rawConn) taken() (n uint64) {
	ask := func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Bytes_acked
		}
	}
	r.mu.Lock()
	owned, fd := r.owned, r.fd
	if owned && fd >= 0 {
		ask(uintptr(fd)) // under the mutex: nobody closes it meanwhile
	}
	r.mu.Unlock()
	if !owned && r.sys != nil {
		_ = r.sys.Control(ask)
	}
	return n
}
