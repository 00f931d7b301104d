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

// pollEvery is how often to look without being told to. It is upstream's number.
const pollEvery = time.Minute

// Config says how to wait.
type Config struct {
	// Quiet is how long nothing must happen before a change counts as complete. Zero: it counts at once.
	Quiet time.Duration
	// AtMost bounds that wait where it is never quiet. Zero: Quiet.
	AtMost time.Duration
	// Ignore says of which paths events mean nothing. Nil: none.
	Ignore func(path string) bool
	// Logger gets what cannot be watched. Nil discards.
	Logger *slog.Logger
}

// Watcher watches directories. It tells of changes while Run runs.
type Watcher struct {
	cfg     Config
	from    *fsnotify.Watcher // nil: nothing can be watched, and polling has to do
	changed chan struct{}     // holds one token
	watched map[string]bool   // :: directory → it could be; Watch's own
}

// New makes a Watcher, which Run ends.
func New(cfg Config) *Watcher {
	w := newPoller(cfg)
	var err error
	if w.from, err = fsnotify.NewWatcher(); err != nil {
		// The number of inotify instances is a limit of the node that others may have used up.
		w.cfg.Logger.Warn("watching files, polling instead", "err", err)
	}
	return w
}

// newPoller makes a Watcher that watches nothing, and polls.
func newPoller(cfg Config) *Watcher {
	cfg.AtMost = max(cfg.AtMost, cfg.Quiet)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Watcher{cfg: cfg, changed: make(chan struct{}, 1), watched: make(map[string]bool)}
}

// Changed delivers when it is time to look again.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Watch watches these directories from now on, and no others. What was watched before is watched once more: its name may have been given to another directory. They
// are to be real names, because a watch stays with the directory that had the name when it was made.
func (w *Watcher) Watch(directories []string) {
	if w.from == nil {
		return
	}
	for dir, watched := range w.watched {
		if slices.Contains(directories, dir) {
			continue
		}
		delete(w.watched, dir)
		if watched {
			_ = w.from.Remove(dir) // gone meanwhile, or no longer of interest: either way there is nothing to do about an error
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

// Run tells of changes until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	if w.from == nil {
		w.follow(ctx, nil, nil)
		return
	}
	defer func() { _ = w.from.Close() }() // it watches nothing any more
	w.follow(ctx, w.from.Events, w.from.Errors)
}

func (w *Watcher) follow(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error) {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	var quiet <-chan time.Time // once there was an event
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
			w.cfg.Logger.Warn("watching files", "err", err) // events were lost, as a rule: something has changed
		case <-quiet:
			quiet = nil
			w.tell()
			continue
		case <-poll.C:
			w.tell()
			continue
		}
		if quiet == nil {
			first = time.Now()
		}
		quiet = time.After(min(w.cfg.Quiet, w.cfg.AtMost-time.Since(first)))
	}
}

func (w *Watcher) tell() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
