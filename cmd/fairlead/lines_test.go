package main

import (
	"bytes"
	"errors"
	"testing"
)

// small is a disk with little room.
type small struct {
	bytes.Buffer
	room int
}

func (s *small) Write(p []byte) (int, error) {
	n, err := s.Buffer.Write(p[:min(len(p), s.room)])
	if s.room -= n; n < len(p) {
		err = errors.New("no space left")
	}
	return n, err
}

func (s *small) Close() error { return nil }

func TestWholeLines(t *testing.T) {
	disk := &small{room: 6}
	w := &wholeLines{WriteCloser: disk}
	for _, room := range []int{6, 0, 0, 1, 100} {
		disk.room = max(disk.room, room)
		_, _ = w.Write([]byte("line\n")) // some fail
	}
	if got, want := disk.String(), "line\nl\nline\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
