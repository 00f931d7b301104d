//go:build !linux

package h2

// taken is how many bytes the peer has acknowledged. 0: it is not known.
func (*rawConn) taken() uint64 { return 0 }
