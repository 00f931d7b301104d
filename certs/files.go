package certs

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/notify"
)

const (
	// quiet is how long directories must be quiet before their files are read. Writers that do not
	// rename write in parts, and the certificate after the key, usually within milliseconds. In a
	// directory that is never quiet the wait ends after quietAtMost.
	quiet       = 100 * time.Millisecond
	quietAtMost = time.Second
	// maxLinks bounds the symlinks on the way to one file, as the kernel does.
	maxLinks = 40
)

// runFiles reads the files again when their directories change, and once a minute, until ctx ends.
func (s *Store) runFiles(ctx context.Context) {
	var paths []string
	for _, f := range s.followed {
		paths = append(paths, f.files...)
	}
	if len(paths) == 0 {
		return
	}
	w := notify.New(notify.Config{Quiet: quiet, AtMost: quietAtMost, Logger: s.logger})
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { w.Run(ctx) })
	for {
		// Watch before reading: a change between New and this point is seen now.
		w.Watch(func() (all []string) {
			for _, path := range paths {
				all = append(all, directories(path)...)
			}
			return all
		})
		for _, f := range s.followed {
			if len(f.files) > 0 {
				s.report(f)(f.load())
			}
		}
		select {
		case <-w.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// directories returns the directories in which a change may change the file at path: its own, and
// those of the symlinks on the way. It watches directories because a replaced or deleted file takes
// its watch with it, and because in a Kubernetes volume only a symlink next to the file changes.
func directories(path string) []string {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	var out []string
	for range maxLinks {
		dir := filepath.Dir(path)
		// By its real name: fsnotify identifies a watch by its path, and the same path may later be
		// another directory.
		if dirReal, err := filepath.EvalSymlinks(dir); err == nil {
			if !slices.Contains(out, dirReal) {
				out = append(out, dirReal)
			}
			// If a directory on the path is a symlink, such as ..data, it changes in its parent.
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
