package trust

import (
	"log/slog"
	"testing"
)

// A refusal is logged for each dial, so the line is not written under the backend's mutex.
func TestRefusalIsLoggedUnlocked(t *testing.T) {
	s := newStage(t, Config{})
	s.set("v1.a", "bundle=ca")
	b, lines := s.Trust.backends["v1.a"], 0
	s.cfg.Logger = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		if lines++; !b.mu.TryLock() {
			t.Errorf("locked: %s", p)
			return len(p), nil
		}
		b.mu.Unlock()
		return len(p), nil
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	if err := b.handshake(s.pair("next").Chain()); err == nil || lines != 1 {
		t.Errorf("%d lines of %v", lines, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
