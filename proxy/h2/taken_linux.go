package h2

import (
	"time"

	"golang.org/x/sys/unix"
)

// taken returns how many bytes the peer has acknowledged, and whether all others are on their way.
// What our own socket accepts says little, since it buffers megabytes. Zero and true mean unknown.
// Silence is the time since the last acknowledgement: a peer whose window is full is asked again
// and again by our kernel, and its kernel answers even if its process is stopped.
func (r *rawConn) taken() (n uint64, sent bool, silence time.Duration) {
	sent = true
	ask := func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n, sent, silence = info.Bytes_acked, info.Notsent_bytes == 0, time.Duration(info.Last_ack_recv)*time.Millisecond
		}
	}
	r.mu.Lock()
	owned, fd := r.owned, r.fd
	if owned && fd >= 0 {
		ask(uintptr(fd)) // under the mutex, so that it is not closed meanwhile
	}
	r.mu.Unlock()
	if !owned && r.sys != nil {
		_ = r.sys.Control(ask)
	}
	return n, sent, silence
}
