//go:build !linux

package h2

import "errors"

// loop exists on Linux only. Elsewhere every connection has its own reader.
type loop struct{}

func newLoop(*shard) (*loop, error) { return nil, errors.ErrUnsupported }

func (*loop) run() error { return nil }

func (*loop) close() {}

func (*loop) own(*rawConn) error { return errors.ErrUnsupported }

func (*loop) watch(*link) {}

func (*loop) unpause(*link) {}

func (*loop) disown(*rawConn) []byte { return nil }
