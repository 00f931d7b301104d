package certs

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// pollEvery is how often files are read without being told to: network file systems tell nothing. It is upstream's number.
	pollEvery = time.Minute
	// settle is how long a directory must be quiet before its files are read. Writers that do not rename write in parts, and the certificate after the key, usually
	// within milliseconds.
	settle = 100 * time.Millisecond
	// settleAtMost bounds that wait in a directory that is never quiet.
	settleAtMost = time.Second
	// maxLinks bounds the symlinks followed to one file, as the kernel does.
	maxLinks = 40
)

// runFiles reads the files again when something happens in their directories, and once a minute, until ctx ends.
func (s *Store) runFiles(ctx context.Context) {
	var files []*followed
	for _, f := range s.followed {
		if len(f.files()) > 0 {
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return
	}
	var events chan fsnotify.Event
	var errs chan error
	w, err := fsnotify.NewWatcher()
	if err != nil {
		// The number of inotify instances is a limit of the node that others may have used up.
		s.logger.Warn("watching files, polling instead", "err", err)
	} else {
		defer func() { _ = w.Close() }() // it watches nothing any more
		events, errs = w.Events, w.Errors
	}
	// Whatever changed between New and here is seen now: first watch, then read.
	s.rewatch(w, files)
	s.reload(files)
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	quiet.Stop()
	var first time.Time // of the events not yet acted upon
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			if first.IsZero() {
				first = time.Now()
			}
			quiet.Reset(max(0, min(settle, settleAtMost-time.Since(first))))
			continue
		case err, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			// Events were lost: read everything.
			s.logger.Warn("watching files", "err", err)
		case <-quiet.C:
		case <-poll.C:
		}
		first = time.Time{}
		s.rewatch(w, files)
		s.reload(files)
	}
}

func (s *Store) reload(files []*followed) {
	for _, f := range files {
		s.report(f)(f.load())
	}
}

// rewatch watches every directory on the way to every file. Directories, because a file that is replaced or deleted takes its watch with it, and because in a Kubernetes
// volume nothing but a symlink beside the file changes.
func (s *Store) rewatch(w *fsnotify.Watcher, files []*followed) {
	if w == nil {
		return
	}
	var want []string
	for _, f := range files {
		for _, path := range f.files() {
			want = append(want, directories(path)...)
		}
	}
	have := w.WatchList()
	for _, dir := range have {
		if !slices.Contains(want, dir) {
			// Gone meanwhile, or no longer on the way: either way there is nothing to do about an error.
			_ = w.Remove(dir)
		}
	}
	for _, dir := range want {
		if slices.Contains(have, dir) {
			continue
		}
		if err := w.Add(dir); err != nil && !os.IsNotExist(err) {
			s.logger.Warn("watching directory, polling instead", "dir", dir, "err", err)
		}
	}
}

// directories are the directories in which a change may change what path leads to: its own, and those of the symlinks that it leads through.
func directories(path string) []string {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	var out []string
	for range maxLinks {
		dir := filepath.Dir(path)
		// By its real name: fsnotify knows a watch by its path, and the same path may be another directory tomorrow.
		if dirReal, err := filepath.EvalSymlinks(dir); err == nil {
			if !slices.Contains(out, dirReal) {
				out = append(out, dirReal)
			}
			// A symlink among the directories themselves, such as ..data, changes in its parent.
			for d := dir; d != filepath.Dir(d) && d != dirReal; d = filepath.Dir(d) {
				if info, err := os.Lstat(d); err == nil && info.Mode()&os.ModeSymlink != 0 {
					if parent, err := filepath.EvalSymlinks(filepath.Dir(d)); err == nil && !slices.Contains(out, parent) {
						out = append(out, parent)
					}
				}
			}
		}
		target, err := os.Readlink(path)
		if err != nil {
			return out
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		path = target
	}
	return out
}
