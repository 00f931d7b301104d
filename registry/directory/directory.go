// Package directory reads the registry from a directory of manifests (--registry=dir:PATH) and
// watches it. Its child package manifest decodes them.
//
// Run is the only writer. It publishes the objects that the table is made from to its caller, and
// keeps ConfigMaps and roles itself, in one immutable state behind an atomic pointer: any goroutine
// may call Watch and Roles.
//
// This package makes no table and knows nothing about requests.
package directory

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/notify"
	"github.com/fairlead-proxy/fairlead/registry/directory/manifest"
)

// Fault is a fault of a manifest.
type Fault = manifest.Fault

// Config configures New.
type Config struct {
	// Path is the directory. Every .yaml, .yml and .json file in it and below it is read, except
	// names that begin with a dot. Empty means that there is no directory, only the group-versions
	// that Client or Follow yields.
	Path string
	// Client connects to a local apiserver, whose group-versions become Local. Nil means none.
	Client *rest.Config
	// Follow sends the APIServices of a local apiserver, ordered by name. Nothing is published
	// before it has sent once. Nil means that they are made from discovery with Client.
	Follow func(ctx context.Context, to chan<- []*apiregistrationv1.APIService)
	// Claimant describes the remote that an APIService names. Empty means the local apiserver.
	// Required with Client and Follow.
	Claimant func(*apiregistrationv1.APIService) string
	// Logger receives failures to ask the local apiserver and to watch the directory. Nil discards.
	Logger *slog.Logger
}

// Publish is called with all valid APIServices, Services and EndpointSlices, and with the faults of
// the files. Unchanged objects are the same pointers as before.
type Publish = func(objects []runtime.Object, faults []Fault)

// Directory watches a directory of manifests. Watch and Roles may be called before Run, but nothing
// is known until Run has read the directory.
type Directory struct {
	// cfg.Follow is nil if there is no local apiserver; else it may be what asks Client.
	cfg     Config
	parent  string // real name of the directory that contains path
	base    string // last element of path
	decoder *manifest.Decoder
	files   map[string]*file // :: path → last read; only Run uses it
	shown   atomic.Pointer[shown]
	// served is what Follow sent last; awaited: nothing is published before. Only Run uses them.
	served  []*apiregistrationv1.APIService
	awaited bool
}

// New checks that the directory exists. It reads nothing: see Run.
func New(c Config) (*Directory, error) {
	d := &Directory{cfg: c, decoder: manifest.NewDecoder(), files: make(map[string]*file), awaited: c.Follow != nil}
	if err := d.find(); err != nil {
		return nil, err
	}
	if c.Client != nil && c.Follow == nil {
		local, err := newLocal(c.Client, cmp.Or(c.Logger, slog.New(slog.DiscardHandler)))
		if err != nil {
			return nil, err
		}
		d.cfg.Follow = local.run
	}
	d.shown.Store(newShown())
	return d, nil
}

// find checks that the directory exists, and finds its real parent.
func (d *Directory) find() error {
	if d.cfg.Path == "" {
		return nil
	}
	if info, err := os.Stat(d.cfg.Path); err != nil {
		return fmt.Errorf("following directory: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("following directory: %s is not a directory", d.cfg.Path)
	}
	absolute, err := filepath.Abs(d.cfg.Path)
	if err != nil {
		return fmt.Errorf("following directory %s: %w", d.cfg.Path, err)
	}
	d.base = filepath.Base(absolute)
	if d.parent, err = filepath.EvalSymlinks(filepath.Dir(absolute)); err != nil {
		return fmt.Errorf("following directory %s: %w", d.cfg.Path, err)
	}
	return nil
}

const (
	// gather is how long to wait for the rest of a change: an editor's rename is two or three
	// events, a ConfigMap update six. A renamed file must be routed within 0.1 s.
	gather = 10 * time.Millisecond
	// settle is how old a file must be before its faults count, and what was written in place, not
	// renamed into place: such a file is seen incomplete, and modified recently.
	settle = 100 * time.Millisecond
)

// Run watches the directory until ctx ends, and publishes its content whenever that changes.
func (d *Directory) Run(ctx context.Context, publish Publish) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := notify.New(notify.Config{Quiet: gather, Logger: d.cfg.Logger, Ignore: func(path string) bool { // siblings of the directory
		return filepath.Dir(path) == d.parent && filepath.Base(path) != d.base
	}})
	following.Go(func() { w.Run(ctx) })
	served := make(chan []*apiregistrationv1.APIService)
	if d.cfg.Follow != nil {
		following.Go(func() { d.cfg.Follow(ctx, served) })
	}
	for first := true; ; {
		// Watch before reading: a change in between is seen twice, never missed.
		var found listing
		w.Watch(func() []string {
			if d.cfg.Path != "" {
				found = list(d.cfg.Path, d.parent) // the directory's name may be linked to another directory
			}
			return found.directories
		})
		again := true
		// If nothing could be read, publish no empty registry: every path would get 404.
		if lost := first && len(found.broken) > 0 && len(found.files) == 0; !lost && !d.awaited {
			again = d.read(found, first) //nolint:contextcheck // kube-aggregator's validation asks for a context and waits for nothing
			d.publish(publish, found.faults)
			first = false
		}
		var soon <-chan time.Time
		if again {
			soon = time.After(settle)
		}
		select {
		case <-w.Changed():
		case d.served = <-served:
			d.awaited = false
			for rest := time.After(gather); rest != nil; { // batch: each pass reads all files and objects
				select {
				case d.served = <-served:
				case <-rest:
					rest = nil
				}
			}
		case <-soon:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// publish passes the last valid objects of all files to the table and to the watchers of
// ConfigMaps. If two files have the same object, the first in order of names wins, which is the
// same on every replica, and a fault names both.
func (d *Directory) publish(to Publish, faults []Fault) {
	var objects []runtime.Object
	now := newShown()
	owners := make(map[string]string) // :: object → "file:line"
	for _, path := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[path]
		faults = append(faults, f.faults...)
		for _, o := range f.objects {
			name := o.Name()
			if owner, taken := owners[name]; taken {
				faults = append(faults, claim(path, o, "is already at "+owner+"; this one is ignored"))
				continue
			}
			owners[name] = fmt.Sprintf("%s:%d", path, o.Line)
			if !now.take(o.Value) {
				objects = append(objects, o.Value)
			}
			a, _ := o.Value.(*apiregistrationv1.APIService)
			switch theirs := d.serves(a); {
			case theirs == nil || d.cfg.Claimant(a) == "":
			case theirs.Labels[Automanaged] == "": // somebody has made both
				faults = append(faults, claim(path, o, "the cluster has one, too, which is ignored: the directory's counts"))
				faults[len(faults)-1].Note = true
			default:
				faults = append(faults, claim(path, o, "the local apiserver serves it too, and "+d.cfg.Claimant(a)+" claims it"))
			}
		}
	}
	for _, o := range d.served {
		if owners["APIService "+o.Name] == "" { // manifests take precedence
			objects = append(objects, o)
		}
	}
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) })
	to(objects, faults)
	d.show(now)
}

// claim makes a fault about conflicting claims of an object.
func claim(path string, o manifest.Object, what string) Fault {
	return Fault{File: path, Line: o.Line, Field: "metadata.name", Message: "metadata.name: " + o.Name() + ": " + what}
}

// serves returns the APIService of a group-version that the local apiserver serves, built in, by a
// CRD or by its own aggregator. Nil means that it does not.
func (d *Directory) serves(a *apiregistrationv1.APIService) *apiregistrationv1.APIService {
	if a == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(d.served, a.Name, func(o *apiregistrationv1.APIService, name string) int {
		return strings.Compare(o.Name, name)
	})
	if !found {
		return nil
	}
	return d.served[i]
}

// identify sets what an API server would: a UID that is the same on every replica, and the file's
// modification time as creation time. It drops another server's bookkeeping from an export.
func identify(o manifest.Object, modified time.Time) {
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
