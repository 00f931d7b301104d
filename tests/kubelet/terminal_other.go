//go:build !linux

package kubelet

import (
	"errors"
	"os"
	"os/exec"
)

// Terminal is a pseudo-terminal, which is supported only on Linux.
type Terminal struct{ *os.File }

// OpenTerminal returns an error.
func OpenTerminal() (*Terminal, error) { return nil, errors.New("opening terminal: only on Linux") }

// Resize does nothing.
func (*Terminal) Resize(_, _ uint16) error { return nil }

// Start does nothing.
func (*Terminal) Start(*exec.Cmd) error { return nil }
