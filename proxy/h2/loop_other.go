//go:build !linux

package h2

import (
	"errors"
	"time"
)

// loop exists on Linux only. Elsewhere every connection has its own goroutines, and none is owned.
type loop struct{}

func newLoop(*shard) (*loop, error) { return nil, errors.ErrUnsupported }

func (*loop) run() error { return nil }

func (*loop) close() {}

func (*loop) own(*rawConn) error { return errors.ErrUnsupported }

func (*loop) watch(*link) {}

func (*loop) unpause(*link) {}

func (*loop) disown(*rawConn) []byte { return nil }

func (*rawConn) flushLocked() (bool, error) { return true, nil }

func (r *rawConn) shutdown(int) error { return r.Conn.Close() }

func (*rawConn) unread() bool { return false }

func (*rawConn) taken() (n uint64, sent bool, silence time.Duration) { return 0, true, 0 }
