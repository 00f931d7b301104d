package certs

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/certs/trust"
)

// maxFile bounds what is read from a file: etcd refuses objects larger than 1.5 MiB, and nothing that is mounted from one is larger.
const maxFile = 1 << 20

// Source says where PEM comes from. At most one of File, Object and Inline is set; the zero Source is nothing.
type Source struct {
	// File is a path. It may be a symlink, or below one, as in a Kubernetes volume. Empty: not a file.
	File string
	// Object is a ConfigMap or Secret, followed by Config.Watch. Zero: not an object.
	Object trust.Ref
	// Key is the key in Object.
	Key string
	// Inline is the PEM itself, which then never changes. Nil: not inline.
	Inline []byte
}

// zero reports whether there is no source.
func (s Source) zero() bool { return s.File == "" && s.Object == (trust.Ref{}) && s.Inline == nil }

// String names the source in logs, metrics and status.
func (s Source) String() string {
	switch {
	case s.File != "":
		return s.File
	case s.Object != (trust.Ref{}):
		name := cmp.Or(s.Object.Kind, "ConfigMap") + " " + s.Object.Namespace + "/" + s.Object.Name
		if s.Key != "" {
			name += "/" + s.Key
		}
		return name
	case s.Inline != nil:
		return "inline"
	}
	return ""
}

// followed is one value that is read from one or more sources of the same kind, and taken only as a whole.
type followed struct {
	use     string
	sources []Source
	// take parses the data of the sources, in their order, and puts it in force. After an error what was in force stays.
	take func(data [][]byte) error
	// whole, when set, takes all of an object instead; err wraps fs.ErrNotExist when there is none.
	whole func(data map[string][]byte, err error) error

	// mu guards what follows. Only the goroutine that reads the source writes it.
	mu      sync.Mutex
	digest  [sha256.Size]byte // of what was taken or refused last; zero: nothing was
	verdict error             // why it was refused
	read    time.Time
	changed time.Time
	err     error // of the last reading: verdict, or why there was nothing to read
}

// name is what tells two values of the same use apart.
func (f *followed) name() string { return f.sources[0].String() }

// files are the paths that the value is read from. None: it is not read from files.
func (f *followed) files() []string {
	var out []string
	for _, s := range f.sources {
		if s.File != "" {
			out = append(out, s.File)
		}
	}
	return out
}

// object is where the value is read from when it is an object.
func (f *followed) object() (trust.Ref, bool) {
	ref := f.sources[0].Object
	return ref, ref != (trust.Ref{})
}

// check refuses sources that cannot be followed as one.
func (f *followed) check() error {
	first := f.sources[0]
	for _, s := range f.sources {
		n := 0
		for _, set := range []bool{s.File != "", s.Object != (trust.Ref{}), s.Inline != nil} {
			if set {
				n++
			}
		}
		if n != 1 {
			return fmt.Errorf("reading %s: want a file, an object or inline data for each part, and only one", f.use)
		}
		if (s.File == "") != (first.File == "") || s.Object != first.Object {
			return fmt.Errorf("reading %s: its parts must come from files or from one object", f.use)
		}
	}
	return nil
}

// load reads files and inline data. An object is delivered instead. changed tells that the outcome is news.
func (f *followed) load() (changed bool, err error) {
	data := make([][]byte, len(f.sources))
	for i, s := range f.sources {
		if s.File == "" {
			data[i] = s.Inline
			continue
		}
		if data[i], err = readFile(s.File); err != nil {
			return f.unreadable(err)
		}
	}
	return f.offer(data, func() error { return f.take(data) })
}

// deliver takes what a watch says of the object.
func (f *followed) deliver(data map[string][]byte, err error) (changed bool, _ error) {
	if f.whole != nil && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		gone := []byte{0}
		if err != nil {
			gone[0] = 1
		}
		return f.offer(append(flatten(data), gone), func() error { return f.whole(data, err) })
	}
	if err != nil {
		return f.unreadable(err)
	}
	parts := make([][]byte, len(f.sources))
	for i, s := range f.sources {
		if parts[i] = data[s.Key]; len(parts[i]) == 0 {
			return f.unreadable(fmt.Errorf("key %q is empty or not there", s.Key))
		}
	}
	return f.offer(parts, func() error { return f.take(parts) })
}

// offer has data taken, unless it is what was seen last: a file that comes back as it was is no change.
func (f *followed) offer(data [][]byte, take func() error) (changed bool, err error) {
	sum := digest(data)
	f.mu.Lock()
	known, verdict := f.digest == sum, f.verdict
	f.mu.Unlock()
	if !known {
		if verdict = take(); verdict != nil {
			verdict = fmt.Errorf("reading %s: %w", f.use, verdict)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = !known || text(f.err) != text(verdict)
	f.digest, f.verdict, f.err, f.read = sum, verdict, verdict, time.Now()
	if !known && verdict == nil {
		f.changed = f.read
	}
	return changed, verdict
}

// unreadable notes that there was nothing to offer.
func (f *followed) unreadable(err error) (changed bool, _ error) {
	err = fmt.Errorf("reading %s: %w", f.use, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = text(f.err) != text(err)
	f.err, f.read = err, time.Now()
	return changed, err
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// flatten makes a list of a map, in the order of its keys.
func flatten(data map[string][]byte) [][]byte {
	var out [][]byte
	for _, k := range slices.Sorted(maps.Keys(data)) {
		out = append(out, []byte(k), data[k])
	}
	return out
}

func digest(data [][]byte) [sha256.Size]byte {
	h := sha256.New()
	for _, d := range data {
		_, _ = fmt.Fprintf(h, "%d:", len(d)) // a hash takes everything
		h.Write(d)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// readFile reads a regular file of bounded size: a fifo would block for ever, a device has no end.
func readFile(path string) ([]byte, error) {
	// Stat first: opening a fifo blocks already.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("opening %s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxFile:
		return nil, fmt.Errorf("reading %s: more than %d bytes", path, maxFile)
	case len(data) == 0:
		return nil, fmt.Errorf("reading %s: %w", path, errEmpty)
	}
	return data, nil
}

var errEmpty = errors.New("the file is empty")
