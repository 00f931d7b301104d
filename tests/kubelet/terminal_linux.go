package kubelet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo-terminal: a program reads what is written to it, and vice versa.
type Terminal struct {
	*os.File          // the user's side
	inner    *os.File // the program's side
}

// OpenTerminal opens a terminal. The caller closes it.
func OpenTerminal() (*Terminal, error) {
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening terminal: %w", err)
	}
	number := 0
	err = control(outer, func(fd int) (err error) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil { // new terminals are locked
			number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		}
		return err
	})
	var inner *os.File
	if err == nil {
		inner, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		_ = outer.Close()
		return nil, fmt.Errorf("opening terminal: %w", err)
	}
	return &Terminal{File: outer, inner: inner}, nil
}

// control calls do with the file descriptor. File.Fd would make the file blocking, so that Close
// would not end a Read.
func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = do(int(fd)) })
	return errors.Join(err, inner)
}

// Resize sets its size.
func (t *Terminal) Resize(columns, rows uint16) error {
	return control(t.File, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	})
}

// Start starts cmd on the terminal. Reads from the terminal end when cmd and its children have
// ended.
func (t *Terminal) Start(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.inner, t.inner, t.inner
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err := cmd.Start()
	_ = t.inner.Close() // cmd has its own copy
	return err
}

// Close closes both sides.
func (t *Terminal) Close() error {
	_ = t.inner.Close()
	return t.File.Close()
}
