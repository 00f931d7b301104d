//go:build !unix

package h2

// nonBlocking says whether sockets can be read and written without blocking. Here they cannot.
const nonBlocking = false

func (r *rawConn) tryRead(uintptr) bool { return true }

func (r *rawConn) tryWrite(uintptr) bool { return true }

func (r *rawConn) shutdown(int) error { return r.Conn.Close() }

func (r *rawConn) unread() bool { return false }
