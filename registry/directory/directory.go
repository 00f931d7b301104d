// Package directory is the registry without a cluster: it follows a folder of manifests (--registry=dir:PATH). Its child
// manifest reads them, and its child apiservices serves what became of them where no local apiserver does.
//
// Run is the one writer. It hands the objects that the table is made from to whoever runs it, and keeps ConfigMaps and
// roles itself, in one immutable state behind an atomic pointer: Watch and Roles may be called by any goroutine.
//
// What this package is not: it makes no table, and it knows nothing about a request.
package directory

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/directory/manifest"
	"github.com/fairlead-proxy/fairlead/registry/notify"
)

// Fault is what is wrong with a manifest.
type Fault = manifest.Fault

// Config is what New needs.
type Config struct {
	// Path holds the manifests: every .yaml, .yml and .json file in it and in the directories below it. Names that
	// begin with a dot are passed over.
	Path string
	// Client reaches a local apiserver, whose group-versions are registered as Local ones. Nil: there is none.
	Client *rest.Config
	// Claimant is who is to serve an APIService. Empty: the local apiserver. Required with Client.
	Claimant func(*apiregistrationv1.APIService) string
	// Logger is told when the local apiserver cannot be asked, or the folder not watched. Nil discards.
	Logger *slog.Logger
}

// Publish takes all APIServices, Services and EndpointSlices that are valid, and the faults of the files. Those that did
// not change are the same pointers as before.
type Publish = func(objects []runtime.Object, faults []Fault)

// Directory follows a folder. Watch and Roles work from the start, but nothing is known until Run has read the folder.
type Directory struct {
	path    string
	parent  string // real name of the directory that path is in
	base    string // last element of path
	decoder *manifest.Decoder
	log     *slog.Logger     // nil discards
	files   map[string]*file // :: path → what was read; run's own
	shown   atomic.Pointer[shown]
	// local registers what the local apiserver serves, and claimant knows what others are to serve. Nil: there is none.
	local    *local
	claimant func(*apiregistrationv1.APIService) string
	// served is what it has registered; run's own.
	served []*apiregistrationv1.APIService
}

// New looks whether the folder is there. It reads nothing yet: see Run.
func New(c Config) (*Directory, error) {
	path := c.Path
	decoder, err := manifest.NewDecoder()
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("following directory: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("following directory: %s is no directory", path)
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("following directory %s: %w", path, err)
	}
	d := &Directory{path: path, base: filepath.Base(absolute), decoder: decoder, log: c.Logger, files: make(map[string]*file), claimant: c.Claimant}
	if d.parent, err = filepath.EvalSymlinks(filepath.Dir(absolute)); err != nil {
		return nil, fmt.Errorf("following directory %s: %w", path, err)
	}
	if c.Client != nil {
		if d.local, err = newLocal(c.Client, cmp.Or(c.Logger, slog.New(slog.DiscardHandler))); err != nil {
			return nil, err
		}
	}
	d.shown.Store(newShown())
	return d, nil
}

const (
	// gather is how long to wait for the rest of a change: an editor's rename is two or three events, a ConfigMap's swap six. A tenth of the
	// 0.1 s within which a renamed file must be routed.
	gather = 10 * time.Millisecond
	// settle is how old a file must be before its faults are believed. A file that is written rather than renamed into place is seen half
	// done, and one that is still being written has the time of now.
	settle = 100 * time.Millisecond
)

// Run follows the folder until ctx ends, and publishes what it holds whenever that has changed.
func (d *Directory) Run(ctx context.Context, publish Publish) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := notify.New(notify.Config{Quiet: gather, Ignore: d.neighbour, Logger: d.log})
	following.Go(func() { w.Run(ctx) })
	served := make(chan []*apiregistrationv1.APIService)
	if d.local != nil {
		following.Go(func() { d.local.run(ctx, served) })
	}
	for first := true; ; {
		// Watch before reading: a change in between is seen twice, never missed.
		found := d.list()
		w.Watch(found.directories)
		again := true
		// Nothing at all could be read: that is no empty registry, whose every path would be answered with 404.
		if lost := first && found.broken && len(found.files) == 0; !lost {
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
		case <-soon:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// neighbour reports whether a path is beside the directory and none of it.
func (d *Directory) neighbour(path string) bool {
	return filepath.Dir(path) == d.parent && filepath.Base(path) != d.base
}

// publish hands the last good objects of all files to the table and to those who follow ConfigMaps. Of two files that claim the same object the
// one whose name comes first has it, on every replica alike; both are named.
func (d *Directory) publish(to Publish, faults []Fault) {
	var objects []runtime.Object
	now := newShown()
	owners := make(map[string]string) // :: object → "file:line"
	for _, path := range sortedKeys(d.files) {
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
			if a, ok := o.Value.(*apiregistrationv1.APIService); ok && d.serves(a) && d.claimant(a) != "" {
				faults = append(faults, claim(path, o, "the local apiserver serves it too, and "+d.claimant(a)+" claims it"))
			}
		}
	}
	for _, o := range d.served {
		if owners["APIService "+o.Name] == "" { // what someone wrote counts more than what registers itself
			objects = append(objects, o)
		}
	}
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) })
	to(objects, faults)
	d.show(now)
}

// claim is a fault about who an object belongs to.
func claim(path string, o manifest.Object, what string) Fault {
	return Fault{File: path, Line: o.Line, Field: "metadata.name", Message: "metadata.name: " + o.Name() + ": " + what}
}

// serves reports whether the local apiserver serves an APIService's group-version: a CRD's or its own.
func (d *Directory) serves(a *apiregistrationv1.APIService) bool {
	_, found := slices.BinarySearchFunc(d.served, a.Name, func(o *apiregistrationv1.APIService, name string) int {
		return strings.Compare(o.Name, name)
	})
	return found
}

// identify gives an object what an API server would: an identity that is the same on every replica, and the file's time for its age. What an
// export brought along of another server's bookkeeping is dropped.
func identify(o manifest.Object, modified time.Time) {
	m, err := meta.Accessor(o.Value)
	if err != nil {
		return
	}
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

// uidOf makes a UUID from a name (RFC 9562 §5.8, version 8: of one's own making).
func uidOf(name string) types.UID {
	h := sha256.Sum256([]byte(name))
	h[6] = h[6]&0x0f | 0x80
	h[8] = h[8]&0x3f | 0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]))
}
