//go:build !linux

package h2

// taken returns how many bytes the peer has acknowledged. Zero means unknown.
func (*rawConn) taken() uint64 { return 0 }
