package notify

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestMain(m *testing.M) { must.Main(m) }

const (
	ms  = time.Millisecond
	sec = time.Second
)

func run(t *testing.T, w *Watcher) (stop func()) {
	t.Helper()
	return must.Run(t, func(ctx context.Context) error { w.Run(ctx); return ctx.Err() })
}

// event is one notification of the kernel.
type event struct {
	at   time.Duration
	path string // empty: an error
}

// every returns events at regular times.
func every(gap, until time.Duration) (out []event) {
	for at := gap; at <= until; at += gap {
		out = append(out, event{at, "d/f"})
	}
	return out
}

// A change is reported once it is quiet, or after AtMost; without any, one look a minute is due.
func TestPace(t *testing.T) {
	tests := []struct {
		name   string
		cfg    Config
		events []event
		want   []time.Duration
	}{
		{"nothing", Config{Quiet: 100 * ms}, nil, []time.Duration{60 * sec}},
		{"an event", Config{Quiet: 100 * ms}, []event{{sec, "d/f"}}, []time.Duration{sec + 100*ms, 60 * sec}},
		{"at once", Config{}, []event{{sec, "d/f"}, {sec + ms, "d/f"}}, []time.Duration{sec, sec + ms, 60 * sec}},
		{"a fixed wait", Config{Quiet: 100 * ms}, every(40*ms, 80*ms), []time.Duration{140 * ms, 60 * sec}},
		{"a change in parts", Config{Quiet: 100 * ms, AtMost: sec}, every(50*ms, 500*ms), []time.Duration{600 * ms, 60 * sec}},
		{"never quiet", Config{Quiet: 100 * ms, AtMost: sec}, every(30*ms, 2*sec), []time.Duration{1030 * ms, 2050 * ms, 60 * sec}},
		{"two changes", Config{Quiet: 100 * ms, AtMost: sec}, []event{{sec, "d/f"}, {2 * sec, "d/f"}}, []time.Duration{1100 * ms, 2100 * ms, 60 * sec}},
		{"lost events", Config{Quiet: 100 * ms}, []event{{sec, ""}}, []time.Duration{1100 * ms, 60 * sec}},
		{"a neighbour", Config{Quiet: 100 * ms, Ignore: func(path string) bool { return path == "d/x" }}, []event{{sec, "d/x"}}, []time.Duration{60 * sec}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), pollEvery+sec)
				defer cancel()
				w := newPoller(tt.cfg)
				events, errs, begun := make(chan fsnotify.Event), make(chan error), time.Now()
				var running sync.WaitGroup
				running.Go(func() { w.follow(ctx, events, errs) })
				running.Go(func() {
					for _, e := range tt.events {
						time.Sleep(e.at - time.Since(begun))
						if e.path == "" {
							errs <- fsnotify.ErrEventOverflow
						} else {
							events <- fsnotify.Event{Name: e.path, Op: fsnotify.Write}
						}
					}
				})
				var got []time.Duration
				for ctx.Err() == nil {
					select {
					case <-w.Changed():
						got = append(got, time.Since(begun))
					case <-ctx.Done():
					}
				}
				running.Wait()
				check.Same(t, tt.want, got, "times of reports")
			})
		})
	}
}

// If nothing can be watched, a look is still due once a minute.
func TestPollsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPoller(Config{})
		run(t, w)
		w.watch([]string{"/"})
		begun := time.Now()
		for range 3 {
			<-w.Changed()
		}
		check.Same(t, 3*pollEvery, time.Since(begun), "time of three reports")
	})
}

// Changes in real directories are reported, also after another directory took a watched name, but
// not those in directories that are not watched any longer.
func TestDirectories(t *testing.T) {
	root := t.TempDir()
	dir := func(name string) string { return filepath.Join(root, name) }
	write := func(path string) {
		t.Helper()
		must.Do(t, os.WriteFile(path, []byte(path), 0o600))
	}
	must.Do(t, errors.Join(os.Mkdir(dir("a"), 0o700), os.Mkdir(dir("b"), 0o700)))
	seen := make(chan string, 100)
	var warnings strings.Builder
	w := New(Config{Quiet: ms, Ignore: func(path string) bool { seen <- path; return false }, Logger: slog.New(slog.NewTextHandler(&warnings, nil))})
	stop := run(t, w)
	defer func() {
		stop()
		check.Same(t, "", warnings.String(), "warnings, of which a missing directory needs none")
	}()

	w.watch([]string{dir("a"), dir("missing")})
	write(dir("a/f"))
	<-w.Changed()

	must.Do(t, errors.Join(os.Rename(dir("a"), dir("old")), os.Mkdir(dir("a"), 0o700)))
	w.watch([]string{dir("a")})
	drain(w.Changed(), seen)
	write(dir("a/g"))
	for path := range seen {
		if path == dir("a/g") {
			break
		}
	}
	<-w.Changed()

	w.watch([]string{dir("b")})
	drain(w.Changed(), seen)
	write(dir("a/h"))
	write(dir("b/i")) // the kernel reports in order
	for path := range seen {
		check.Same(t, true, path != dir("a/h"), "a change in a directory that is not watched any longer")
		if path == dir("b/i") {
			break
		}
	}
}

// A directory that appears while others are being watched is watched before it is listed.
func TestWatchLists(t *testing.T) {
	root := t.TempDir()
	a, b := filepath.Join(root, "a"), filepath.Join(root, "b")
	must.Do(t, errors.Join(os.Mkdir(a, 0o700), os.Mkdir(b, 0o700)))
	w := New(Config{})
	run(t, w)
	lists := 0
	w.Watch(func() []string { // as with a link that changes right after it was read
		if lists++; lists == 1 {
			return []string{a}
		}
		return []string{b}
	})
	check.Same(t, 3, lists, "lists, once more after the last change")
	must.Do(t, os.WriteFile(filepath.Join(b, "f"), nil, 0o600))
	<-w.Changed()

	lists = 0
	w.Watch(func() []string { lists++; return [][]string{{b}, {a}}[lists%2] })
	check.Same(t, maxLists, lists, "lists of directories that keep changing")
	<-w.Changed() // a look is due
}

// A directory that cannot be watched is logged once, and again if it was dropped and added since.
func TestCannotBeWatched(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	var warnings strings.Builder
	w := New(Config{Logger: slog.New(slog.NewTextHandler(&warnings, nil))})
	defer w.from.Close()
	for i, step := range []struct {
		directories []string
		want        int
	}{{[]string{file + "/x"}, 1}, {[]string{file + "/x"}, 1}, {nil, 1}, {[]string{file + "/x"}, 2}} {
		w.watch(step.directories)
		check.Same(t, step.want, strings.Count(warnings.String(), "watching directory, polling instead"),
			"step %d: warnings in %s", i, warnings.String())
	}
}

// drain discards what was reported so far.
func drain(changed <-chan struct{}, seen <-chan string) {
	for {
		select {
		case <-changed:
		case <-seen:
		default:
			return
		}
	}
}
