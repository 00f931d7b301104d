package directory

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/directory/manifest"
)

// file is what was read of one file.
type file struct {
	info fs.FileInfo
	// readAt is when. A file that was changed within a tick of its clock before that may have changed again without looking different.
	readAt time.Time
	// sum is of the content.
	sum [sha256.Size]byte
	// objects are the last good ones, with the same pointers until the file changes.
	objects []manifest.Object
	// faults are those of the last reading; empty when objects are of that reading.
	faults []Fault
}

// listing is what is in a directory.
type listing struct {
	files       []string // in order
	directories []string // real names, to be watched
	faults      []Fault
	// broken says that some directory could not be read, so that a file that is not listed may still be there.
	broken bool
}

const (
	// maxFileSize bounds one file: etcd would not take an object of more than 1.5 MiB, and a List of all APIServices of a large cluster has 2.
	maxFileSize = 4 << 20
	// maxFiles is twice the 10,000 APIServices that are supported, each with a file for its Service.
	maxFiles = 20_000
	// maxDepth is how many directories below each other are read.
	maxDepth = 8
	// clockTick is the coarsest time stamp of a file system that is still met (FAT has 2 s).
	clockTick = 2 * time.Second
)

// list finds the manifests. Directories are followed by their real names, because a watch stays with the directory that had the name when it
// was made, while a ConfigMap's mount gets another one with every change.
func (d *Directory) list() listing {
	var l listing
	l.directories = append(l.directories, d.parent) // the directory's own name may be moved to another one
	l.walk(d.path, 0)
	slices.Sort(l.files)
	return l
}

func (l *listing) walk(path string, depth int) {
	entries, err := os.ReadDir(path)
	if err != nil {
		l.fault(path, "reading directory", err)
		return
	}
	if dir, err := filepath.EvalSymlinks(path); err == nil {
		l.directories = append(l.directories, dir)
	}
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
			// Editors' swap files, version control, and ..data of a ConfigMap's mount, whose files are linked to beside it.
		case e.IsDir() && depth < maxDepth:
			l.walk(name, depth+1)
		case e.IsDir():
			l.fault(name, "reading directory", fmt.Errorf("more than %d directories deep", maxDepth))
		case !isManifest(name):
		case len(l.files) >= maxFiles:
			l.fault(name, "reading file", fmt.Errorf("more than %d files", maxFiles))
			return
		default:
			l.files = append(l.files, name)
		}
	}
}

func (l *listing) fault(path, doing string, err error) {
	l.broken = true
	l.faults = append(l.faults, Fault{File: path, Message: doing + ": " + plain(err)})
}

// plain is the text of an error without the path, which the fault names already.
func plain(err error) string {
	if p, ok := err.(*fs.PathError); ok { //nolint:errorlint // os returns it unwrapped
		return p.Err.Error()
	}
	return err.Error()
}

func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// read reads the files that have changed. It reports whether some of them should be looked at again soon.
func (d *Directory) read(l listing, first bool) (again bool) {
	for path := range d.files {
		if _, listed := slices.BinarySearch(l.files, path); !listed && !l.broken {
			delete(d.files, path)
		}
	}
	for _, path := range l.files {
		old := d.files[path]
		if old == nil {
			old = &file{}
		}
		f := d.readFile(path, old)
		switch {
		case f == old:
		case f == nil:
			delete(d.files, path)
		case !first && f.unsettled():
			again = true
		default:
			d.files[path] = f
		}
	}
	return again
}

// readFile reads one file. It returns old when it has not changed and nil when it is gone. A file that cannot be read, or is not valid, keeps
// its last good objects.
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
	data, err := readBounded(path)
	if err != nil {
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

// unsettled reports whether a file is not valid and so new that perhaps it is still being written.
func (f *file) unsettled() bool {
	if len(f.faults) == 0 || f.info == nil {
		return false
	}
	age := time.Since(f.info.ModTime())
	return 0 <= age && age < settle
}

// unchanged reports whether a file is surely the one that was read.
func (f *file) unchanged(info fs.FileInfo) bool {
	return f.info != nil && os.SameFile(f.info, info) && f.info.Size() == info.Size() && f.info.ModTime().Equal(info.ModTime()) &&
		f.readAt.Sub(info.ModTime()) > clockTick
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("larger than %d bytes", maxFileSize)
	}
	return data, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
