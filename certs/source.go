package certs

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// maxFile bounds a file. etcd refuses objects above 1.5 MiB, and no file that is mounted from one
// is larger.
const maxFile = 1 << 20

// followed is one value that is read from one or more files, or from the authentication ConfigMap.
// It is taken as a whole or not at all.
type followed struct {
	use string
	// source names the origin in logs, metrics and status. It distinguishes two values of the same
	// use.
	source string
	// files are the paths to read. Each may be a symlink, or below one, as in a Kubernetes volume.
	files []string
	// given is the data itself, which never changes. Nil means that it is read, or delivered.
	given [][]byte
	// take parses the data, in the order of the files, and puts it in force. After an error the
	// former value stays in force.
	take func(data [][]byte) error
	// whole takes all of the ConfigMap instead. err wraps fs.ErrNotExist when there is none.
	whole func(data map[string][]byte, err error) error

	// held returns the certificates in force: of a pair, the leaf. Nil means that it has none.
	held func() []*x509.Certificate

	// mu guards the fields below. Only the goroutine that reads the source writes them.
	mu      sync.Mutex
	digest  [sha256.Size]byte // of the last data taken or refused; zero means none yet
	refused bool
	read    time.Time
	changed time.Time
	err     error // of the last read: why it was refused, or why nothing could be read
}

// load reads the files. changed tells whether the outcome is new.
func (f *followed) load() (changed bool, err error) {
	data := f.given
	for _, file := range f.files {
		part, err := readFile(file)
		if err != nil {
			return f.unreadable(err)
		}
		data = append(data, part)
	}
	return f.offer(data, func() error { return f.take(data) })
}

// deliver takes the ConfigMap from a watch.
func (f *followed) deliver(data map[string][]byte, err error) (changed bool, _ error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.unreadable(err)
	}
	all := [][]byte{[]byte(text(err))}
	for _, k := range slices.Sorted(maps.Keys(data)) {
		all = append(all, []byte(k), data[k])
	}
	return f.offer(all, func() error { return f.whole(data, err) })
}

// offer calls take, unless data is what is in force: a file that comes back unchanged is no change.
// Refused data is taken again: a file may name another one that was still missing.
func (f *followed) offer(data [][]byte, take func() error) (changed bool, err error) {
	h := sha256.New()
	for _, d := range data {
		_, _ = fmt.Fprintf(h, "%d:", len(d)) // writing to a hash never fails
		h.Write(d)
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	f.mu.Lock()
	known := f.digest == sum
	inForce := known && !f.refused
	f.mu.Unlock()
	if !inForce {
		if err = take(); err != nil {
			err = fmt.Errorf("reading %s: %w", f.use, err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = !known || text(f.err) != text(err)
	f.digest, f.refused, f.err, f.read = sum, err != nil, err, time.Now()
	if !inForce && err == nil {
		f.changed = f.read
	}
	return changed, err
}

// unreadable notes that nothing could be read.
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

// readFile reads a regular file of bounded size: a FIFO would block for ever, a device has no end.
func readFile(path string) ([]byte, error) {
	// Stat first: opening a FIFO already blocks.
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
