package h2

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// A loop that cannot wait any more serves nobody: its connections end, and Run says so and ends.
func TestLoopThatCannotWait(t *testing.T) {
	b := newHolding("")
	t.Cleanup(func() { close(b.release) })
	s := newStand(t, "loop", b, nil)
	res := s.begin("/hold", len("begun "))
	for _, sh := range s.server.shards {
		if err := sh.loop.file.SetReadDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("a response that was cut off looks complete")
	}
	select {
	case <-s.stopped:
	case <-time.After(10 * time.Second):
		t.Fatal("Run goes on")
	}
	if !errors.Is(s.runErr, os.ErrDeadlineExceeded) {
		t.Errorf("Run returned %v", s.runErr)
	}
}
