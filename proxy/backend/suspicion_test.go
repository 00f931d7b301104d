package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A failure makes an endpoint suspect, or only has it probed, or says nothing about it. A dial over shared connections
// is judged once.
func TestWhatAFailureSays(t *testing.T) {
	type effect struct {
		Suspect bool
		Signals int
	}
	connecting := func(err error) error { return fmt.Errorf("forwarding: %w", &dialError{dialConnect, err}) }
	for _, tt := range []struct {
		name          string
		err           error
		idle          bool
		member, owner effect
	}{
		{"lost", io.EOF, false, effect{true, 1}, effect{true, 1}},
		{"closed while idle", io.EOF, true, effect{false, 1}, effect{false, 1}},
		{"silent while idle", errors.New("backend silent"), true, effect{true, 1}, effect{true, 1}},
		{"refused", connecting(syscall.ECONNREFUSED), false, effect{false, 1}, effect{}},
		{"too many open files", connecting(os.NewSyscallError("socket", syscall.EMFILE)), false, effect{}, effect{}},
		{"taking it over", os.NewSyscallError("fcntl", syscall.ENFILE), false, effect{}, effect{}},
		{"canceled", connecting(context.Canceled), false, effect{}, effect{}},
		{"bundle", &dialError{dialTrust, errors.New("bad bundle")}, false, effect{}, effect{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newStreet(t, nil)
			e := f.Upstream(f.set(healthy(place1))).at(place1)
			e.failed(tt.err, tt.idle)
			check.Same(t, tt.member, effect{e.suspicion.failing(), f.signals.count(place1)}, "who shares it")
			f.signals.list = nil
			e.via.Load().failed(tt.err, tt.idle)
			check.Same(t, tt.owner, effect{e.via.Load().suspicion.failing(), f.signals.count(place1)}, "whose it is")
		})
	}
}
