// Package directory reads and watches a directory of manifests (--registry=dir:PATH). Package manifest decodes them.
//
// Run is the only writer. It publishes the objects that the table is made from to its caller, and keeps ConfigMaps and
// roles itself, in one immutable state behind an atomic pointer: any goroutine may call Watch and Roles.
//
// This package makes no table and knows nothing about requests.
package directory

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/notify"
	"github.com/fairlead-proxy/fairlead/registry/directory/manifest"
)

// Fault is a fault of a manifest.
type Fault = manifest.Fault

// Object is an object of a file.
type Object = manifest.Object

// Config configures New.
type Config struct {
	// Path is the directory. Every .yaml, .yml and .json file in it and below it is read, except
	// names that begin with a dot. Empty means that there is no directory, and nothing in it.
	Path   string
	Files  bool         // allows that Path is a file, which is then read alone
	Logger *slog.Logger // receives failures to watch the directory. Nil discards
}

// Decode decodes what is not in a directory. File names it in faults.
func Decode(file string, data []byte) ([]Object, []Fault) {
	return manifest.NewDecoder().Decode(file, data)
}

// Load reads a file or directory once.
func Load(path string) (objects []Object, faults []Fault) {
	files := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		files, faults = Files(path)
	}
	decoder := manifest.NewDecoder() // one for all: making it takes as long as a file
	for _, file := range files {
		data, err := Read(file)
		if err != nil {
			faults = append(faults, Fault{File: file, Message: "reading file: " + plain(err)})
			continue
		}
		found, wrong := decoder.Decode(file, data)
		objects, faults = append(objects, found...), append(faults, wrong...)
	}
	return unique(objects, faults)
}

// Directory watches a directory of manifests. Watch and Roles may be called before Run, but know nothing before it.
type Directory struct {
	cfg     Config
	parent  string // real name of the directory that contains path
	base    string // last element of path, or empty for a file
	decoder *manifest.Decoder
	files   map[string]*file // :: path → last read; only Run uses it
	faults  []Fault          // those of the last listing, likewise
	shown   atomic.Pointer[shown]
}

// New checks that the directory exists, and finds its real parent. It reads nothing: see Run.
func New(c Config) (*Directory, error) {
	d := &Directory{cfg: c, decoder: manifest.NewDecoder(), files: make(map[string]*file)}
	if d.shown.Store(newShown()); c.Path == "" {
		return d, nil
	}
	info, err := os.Stat(c.Path)
	if err != nil {
		return nil, fmt.Errorf("following directory: %w", err)
	}
	if !info.IsDir() && !c.Files {
		return nil, fmt.Errorf("following directory: %s is not a directory", c.Path)
	}
	absolute, err := filepath.Abs(c.Path)
	if err != nil {
		return nil, fmt.Errorf("following directory %s: %w", c.Path, err)
	}
	if info.IsDir() {
		d.base = filepath.Base(absolute)
	}
	if d.parent, err = filepath.EvalSymlinks(filepath.Dir(absolute)); err != nil {
		return nil, fmt.Errorf("following directory %s: %w", c.Path, err)
	}
	return d, nil
}

const (
	// gather is how long to wait for the rest of a change: an editor's rename is two or three
	// events, a ConfigMap update six. A renamed file must be routed within 0.1 s.
	gather = 10 * time.Millisecond
	// settle is how old a file must be before its faults count, and what was written in place, not renamed into place:
	// such a file is seen incomplete. While events keep coming, as of a checkout, it is the longest wait for a pause.
	settle = 100 * time.Millisecond
)

// Run watches the directory until ctx ends. It calls publish whenever the content changes, with all valid APIServices,
// Services and EndpointSlices, and with the faults of the files. Unchanged objects have the same pointers as before.
func (d *Directory) Run(ctx context.Context, publish func([]Object, []Fault)) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sibling := func(path string) bool { // unless a link in the directory may lead to it
		return filepath.Dir(path) == d.parent && d.base != "" && filepath.Base(path) != d.base && !manifest.IsFile(path)
	}
	w := notify.New(notify.Config{Quiet: gather, AtMost: settle, Logger: d.cfg.Logger, Ignore: sibling})
	following.Go(func() { w.Run(ctx) })
	for first := true; ; {
		// Watch before reading: a change in between is seen twice, never missed.
		var found listing
		w.Watch(func() []string {
			if d.base != "" {
				found = list(d.cfg.Path, d.parent) // the directory's name may be linked to another directory
			} else if d.cfg.Path != "" {
				found = one(d.cfg.Path, d.parent)
			}
			return found.directories
		})
		again := true
		// If nothing could be read, publish no empty registry: every path would get 404.
		if lost := first && len(found.broken) > 0 && len(found.files) == 0; !lost {
			again = d.read(found, first, publish) //nolint:contextcheck // kube-aggregator's validation does not wait
			first = false
		}
		var soon <-chan time.Time
		if again {
			soon = time.After(settle)
		}
		select {
		case <-w.Changed():
		case <-soon:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// publish passes the last valid objects of all files to the table and to the watchers of ConfigMaps.
func (d *Directory) publish(to func([]Object, []Fault), faults []Fault) {
	var all []Object
	for _, path := range slices.Sorted(maps.Keys(d.files)) {
		all, faults = append(all, d.files[path].objects...), append(faults, d.files[path].faults...)
	}
	now := newShown()
	all, faults = unique(all, faults)
	to(slices.DeleteFunc(all, func(o Object) bool { return now.take(o.Value) }), faults)
	d.show(now)
}

// unique adds a fault for each object that two files have. The first in order of names counts, on every replica.
func unique(objects []Object, faults []Fault) ([]Object, []Fault) {
	owners := make(map[string]string) // :: object → "file:line"
	objects = slices.DeleteFunc(objects, func(o Object) bool {
		owner, taken := owners[o.Name()]
		if taken {
			faults = append(faults, o.Fault("is already at "+owner+"; this one is ignored"))
		} else {
			owners[o.Name()] = fmt.Sprintf("%s:%d", o.File, o.Line)
		}
		return taken
	})
	return objects, faults
}

// identify sets what an API server would: a UID that is the same on every replica, and the file's
// modification time as creation time. It drops another server's bookkeeping from an export.
func identify(o Object, modified time.Time) {
	m := o.Value
	m.SetUID(uidOf(o.Name()))
	m.SetCreationTimestamp(metav1.NewTime(modified.Truncate(time.Second)))
	m.SetManagedFields(nil)
	m.SetResourceVersion("")
	m.SetSelfLink("")
	m.SetDeletionTimestamp(nil)
	if a, ok := o.Value.(*apiregistrationv1.APIService); ok {
		a.Status = apiregistrationv1.APIServiceStatus{}
	}
}
