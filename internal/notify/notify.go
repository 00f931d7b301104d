// Package notify signals that something in directories may have changed, for readers of files. It signals when the
// kernel reports events, once they have stopped, and every minute, because network file systems report nothing.
//
// Concurrency: Run's goroutine waits for events. Meanwhile one goroutine may call Watch. Watch
// before reading: a change in between is then seen twice, never missed.
//
// This package reads no files, and does not know which directories matter.
package notify

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const pollEvery = time.Minute // as upstream

// Config configures New.
type Config struct {
	Quiet  time.Duration          // without an event for so long, a change counts as complete. Zero: at once
	AtMost time.Duration          // bounds that wait if events keep coming. Zero means Quiet
	Ignore func(path string) bool // reports whether to ignore events of a path. Nil means that none are
	Logger *slog.Logger           // receives failures to watch. Nil discards
}

// Watcher watches directories. It signals changes while Run runs.
type Watcher struct {
	cfg     Config
	from    *fsnotify.Watcher // nil means polling only
	changed chan struct{}     // holds one token
	// Only Watch uses these.
	listed  []string
	watched map[string]bool // :: directory → watching succeeded
}

// New makes a Watcher. Run releases it.
func New(cfg Config) *Watcher {
	w := newPoller(cfg)
	var err error
	if w.from, err = fsnotify.NewWatcher(); err != nil {
		// The node limits inotify instances, and other programs may have used them up.
		w.cfg.Logger.Warn("watching files, polling instead", "err", err)
	}
	return w
}

func newPoller(cfg Config) *Watcher {
	cfg.AtMost = max(cfg.AtMost, cfg.Quiet)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Watcher{cfg: cfg, changed: make(chan struct{}, 1), watched: make(map[string]bool)}
}

// Changed returns a channel that delivers when something may have changed.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

const maxLists = 10 // bounds how often a Watch lists directories that keep changing

// Watch watches the directories that list returns, instead of the earlier ones. It lists again until all of them were
// watched before list was called, so that no later change is missed. Names must be real (without links), because a
// watch stays with the directory that had the name when the watch was made.
func (w *Watcher) Watch(list func() []string) {
	for range maxLists {
		w.watch(w.listed)
		before := w.listed
		if w.listed = list(); slices.Equal(w.listed, before) {
			return
		}
	}
	w.watch(w.listed)
	w.signal() // they may have changed since
}

// watch watches directories, those of before anew: the name may now be another directory's.
func (w *Watcher) watch(directories []string) {
	if w.from == nil {
		return
	}
	for dir, watched := range w.watched {
		if slices.Contains(directories, dir) {
			continue
		}
		delete(w.watched, dir)
		if watched {
			_ = w.from.Remove(dir) // the directory may be gone: nothing to do about an error
		}
	}
	for _, dir := range directories {
		err := w.from.Add(dir)
		if _, known := w.watched[dir]; err != nil && !known && !errors.Is(err, fs.ErrNotExist) {
			w.cfg.Logger.Warn("watching directory, polling instead", "dir", dir, "err", err)
		}
		w.watched[dir] = err == nil
	}
}

// Run signals changes until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	if w.from == nil {
		w.follow(ctx, nil, nil)
		return
	}
	defer func() { _ = w.from.Close() }()
	w.follow(ctx, w.from.Events, w.from.Errors)
}

func (w *Watcher) follow(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error) {
	poll := time.Tick(pollEvery)
	var quiet <-chan time.Time // set while events are pending
	var first time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if w.cfg.Ignore != nil && w.cfg.Ignore(e.Name) {
				continue
			}
		case err := <-errs:
			w.cfg.Logger.Warn("watching files", "err", err) // usually events were lost, so something has changed
		case <-quiet:
			quiet = nil
			w.signal()
			continue
		case <-poll:
			w.signal()
			continue
		}
		if quiet == nil {
			first = time.Now()
		}
		quiet = time.After(min(w.cfg.Quiet, w.cfg.AtMost-time.Since(first)))
	}
}

func (w *Watcher) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
