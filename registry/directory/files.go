package directory

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/directory/manifest"
)

type file struct {
	info fs.FileInfo

	// readAt is when the file was read, zero if it could not be. If its modification time is within
	// clockTick before that, it may have changed again without a new time.
	readAt  time.Time
	sum     [sha256.Size]byte // the digest of the content
	objects []Object          // the last valid ones, with the same pointers until the file changes
	faults  []Fault           // those of the last read. Empty means that objects are of that read
}

type listing struct {
	files       []string // in order
	directories []string // real names, to be watched
	faults      []Fault
	broken      []string // the directories that could not be read wholly: files below them may be missing
}

const (
	maxFiles  = 20_000          // for the supported 10,000 APIServices, each with a file for its Service
	maxDepth  = 8               // how deep subdirectories may be nested
	clockTick = 2 * time.Second // the coarsest resolution of modification times in use (FAT has 2 s)
)

// list finds the manifests. Directories are listed by their real names, because a watch stays with the directory that
// had the name when the watch was made, and a ConfigMap's mount links to a new directory with every change.
func list(path string, watched ...string) listing {
	l := listing{directories: watched}
	l.walk(path)
	slices.Sort(l.files)
	return l
}

// one finds a single file, which a ConfigMap's mount links to another one with every change.
func one(path string, watched ...string) listing {
	l := listing{directories: watched}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		l.fault(path, "reading file", err)
		return l
	}
	l.files, l.directories = []string{path}, append(l.directories, filepath.Dir(real))
	return l
}

// Files returns the manifests of a directory, in order, and why some may be missing.
func Files(path string) ([]string, []Fault) {
	l := list(path)
	return l.files, l.faults
}

// walk lists a directory, which is in those above by their real names.
func (l *listing) walk(path string, above ...string) {
	dir, err := filepath.EvalSymlinks(path)
	if slices.Contains(above, dir) {
		err = errors.New("a link to a directory that contains it")
	}
	var entries []fs.DirEntry
	if err == nil {
		l.directories = append(l.directories, dir) // also one that cannot be read: who watches it logs why
		entries, err = os.ReadDir(path)
	}
	if err != nil {
		l.fault(path, "reading directory", err)
		return
	}
	above = append(slices.Clip(above), dir)
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
			// Editors' swap files, version control, ..data of a ConfigMap's mount: links beside it lead to its content.
		case isDirectory(e, name) && len(above) <= maxDepth:
			l.walk(name, above...)
		case isDirectory(e, name):
			l.fault(name, "reading directory", fmt.Errorf("more than %d directories deep", maxDepth))
		case !manifest.IsFile(name):
		case len(l.files) >= maxFiles:
			l.fault(path, "reading directory", fmt.Errorf("more than %d files, from %s on", maxFiles, e.Name()))
			return
		default:
			l.files = append(l.files, name)
			if e.Type() == fs.ModeSymlink { // a change of the file is one in its own directory
				real, err := filepath.EvalSymlinks(name)
				if dir := filepath.Dir(real); err == nil && !slices.Contains(l.directories, dir) {
					l.directories = append(l.directories, dir)
				}
			}
		}
	}
}

// isDirectory reports whether an entry is a directory, or a link to one without a manifest's name.
func isDirectory(e fs.DirEntry, name string) bool {
	if e.Type() != fs.ModeSymlink || manifest.IsFile(name) {
		return e.IsDir()
	}
	info, err := os.Stat(name)
	return err == nil && info.IsDir() || err != nil && !errors.Is(err, fs.ErrNotExist) // walk says why
}

func (l *listing) fault(path, doing string, err error) {
	l.broken = append(l.broken, path)
	l.faults = append(l.faults, Fault{File: path, Message: doing + ": " + plain(err)})
}

// lacks reports whether a file may exist although it is not listed.
func (l *listing) lacks(path string) bool {
	return slices.ContainsFunc(l.broken, func(dir string) bool {
		below, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(below)
	})
}

// plain returns the text of an error without the path, which the fault already has.
func plain(err error) string {
	if p, ok := err.(*fs.PathError); ok { //nolint:errorlint // os returns it unwrapped
		return p.Err.Error()
	}
	return err.Error()
}

// read reads the changed files, and publishes if that is news. It reports whether some must be read again soon.
func (d *Directory) read(l listing, first bool, publish func([]Object, []Fault)) (again bool) {
	changed := !d.shown.Load().read || !slices.Equal(l.faults, d.faults)
	d.faults = l.faults
	for path := range d.files {
		if _, listed := slices.BinarySearch(l.files, path); !listed && !l.lacks(path) {
			delete(d.files, path)
			changed = true
		}
	}
	for _, path := range l.files {
		old := cmp.Or(d.files[path], &file{})
		f := d.readFile(path, old)
		switch {
		case f == old:
		case f == nil || !first && f.unsettled(old): // the next listing has its new name, if there is one
			again = true
		default:
			d.files[path] = f
			changed = changed || f.sum != old.sum || !slices.Equal(f.faults, old.faults)
		}
	}
	if changed { // else, each minute, a policy would be compiled, and a table be made, anew
		d.publish(publish, slices.Clone(l.faults)) // the policy adds to the first
	}
	return again
}

// readFile reads a file. It returns old for an unchanged one, nil for none. A bad one keeps its last valid objects.
func (d *Directory) readFile(path string, old *file) *file {
	f := &file{readAt: time.Now(), objects: old.objects}
	wrong := func(doing string, err error) *file {
		f.faults = []Fault{{File: path, Message: doing + ": " + plain(err)}}
		return f
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil // removed since it was listed
	}
	info, err := os.Stat(path)
	if err != nil {
		return wrong("reading file", err)
	}
	if old.unchanged(info) {
		return old
	}
	f.info = info
	if !info.Mode().IsRegular() {
		return wrong("reading file", errors.New("not a regular file")) // a pipe would hang
	}
	data, err := Read(path)
	if err == nil && len(data) == 0 && len(old.objects) > 0 {
		// The shell empties a file before the command that writes it begins.
		err = errors.New("empty; remove it to remove its objects")
	}
	if err != nil {
		f.readAt = time.Time{} // unchanged must not hold: another mode or owner leaves the file's time as it is
		return wrong("reading file", err)
	}
	if f.sum = sha256.Sum256(data); f.sum == old.sum {
		f.faults = old.faults
		return f
	}
	objects, faults := d.decoder.Decode(path, data)
	if f.faults = faults; len(faults) > 0 {
		return f
	}
	for _, o := range objects {
		identify(o, info.ModTime())
	}
	f.objects = objects
	return f
}

// unsettled reports whether a file is so new that it may still be being written: it is invalid, or
// it was written in place, and the beginning of a manifest can be a valid one.
func (f *file) unsettled(old *file) bool {
	inPlace := old.info != nil && os.SameFile(old.info, f.info)
	if len(f.faults) == 0 && !inPlace || f.info == nil {
		return false
	}
	age := time.Since(f.info.ModTime())
	return 0 <= age && age < settle
}

// unchanged reports whether a file is certainly the same as when it was read.
func (f *file) unchanged(info fs.FileInfo) bool {
	return f.info != nil && os.SameFile(f.info, info) && f.info.Size() == info.Size() &&
		f.info.ModTime().Equal(info.ModTime()) && f.readAt.Sub(info.ModTime()) > clockTick
}

// Read reads a manifest.
func Read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return manifest.Read(f)
}
