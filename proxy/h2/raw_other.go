//go:build !unix

package h2

import "errors"

// nonBlocking says whether sockets can be read and written without waiting. Here a goroutine waits instead.
const nonBlocking = false

func (r *rawConn) wait(*buffers) (int, error) { return 0, errors.ErrUnsupported }

func (r *rawConn) write([]byte) (int, error) { return 0, errors.ErrUnsupported }
