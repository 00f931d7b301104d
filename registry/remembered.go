package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// remembered is a file with the last known APIServices of etcd (--registry-cache-file). It is read
// only if etcd does not answer at the start, because it may be outdated.
type remembered struct {
	path     string // empty means none
	log      *slog.Logger
	unstored atomic.Pointer[error] // how the last write ended. Nil: there was none

	mu     sync.Mutex // guards listed, and the decision between etcd and the file
	listed bool       // etcd has been read, so the file is no longer used
}

const (
	recallAfter = 5 * time.Second // how long etcd may take at the start: longer than a leader election
	// rememberEvery is the shortest interval between writes. After a restart without etcd, later changes are missing.
	rememberEvery = 10 * time.Second
	maxRemembered = 64 << 20 // 10,000 objects of 6 KiB
	kindOfList    = "APIServiceList"
)

// seen passes on what etcd has, and ends the use of the file.
func (m *remembered) seen(to *changes, all map[types.NamespacedName]runtime.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed = true
	to.replace(kindAPIService, all)
}

// recall uses the file if etcd has not been read in time.
func (m *remembered) recall(ctx context.Context, to *changes) {
	if !latest.Sleep(ctx, recallAfter) {
		return
	}
	list, err := m.read()
	m.mu.Lock()
	listed := m.listed
	if !listed && err == nil {
		all := make(map[types.NamespacedName]runtime.Object, len(list.Items))
		for i := range list.Items {
			all[types.NamespacedName{Name: list.Items[i].Name}] = &list.Items[i]
		}
		to.replace(kindAPIService, all)
	}
	m.mu.Unlock() // lines are I/O, and etcd may answer meanwhile
	switch {
	case listed || errors.Is(err, fs.ErrNotExist):
	case err != nil:
		m.log.Error("the last known APIServices cannot be used", "err", err)
	default:
		m.log.Warn("etcd does not answer: the last known APIServices are used until it does",
			"file", m.path, "apiservices", len(list.Items))
	}
}

// read reads the file, unless another user could have written it.
func (m *remembered) read() (list *apiregistrationv1.APIServiceList, err error) {
	f, err := os.OpenFile(m.path, readOwnFile, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, known := ownerOf(info)
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", m.path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s has mode %04o, so that other users can read or write it: want 0600",
			m.path, info.Mode().Perm())
	case known && owner != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user %d, but this process runs as user %d", m.path, owner, os.Geteuid())
	case info.Size() > maxRemembered:
		return nil, fmt.Errorf("%s has more than %d bytes", m.path, maxRemembered)
	}
	list = &apiregistrationv1.APIServiceList{}
	if err := json.NewDecoder(io.LimitReader(f, maxRemembered)).Decode(list); err != nil {
		return nil, fmt.Errorf("reading %s: %w", m.path, err)
	}
	if list.Kind != kindOfList {
		return nil, fmt.Errorf("reading %s: its kind is %q, want %s", m.path, list.Kind, kindOfList)
	}
	return list, nil
}

// follow writes the APIServices of etcd whenever they change, until ctx ends.
func (m *remembered) follow(ctx context.Context, table func() *Table) {
	var last []*Entry
	differs := func(c latest.Change[*Entry]) bool {
		return c.Old == nil || c.New == nil || c.Old.Object != c.New.Object
	}
	for t := range latest.Of(ctx, table, time.Tick(rememberEvery)) { // also after a tick, for what could not be stored
		m.mu.Lock()
		listed := m.listed
		m.mu.Unlock()
		// etcd may have been read since an incomplete table, which has nothing, was built.
		if !listed || !t.Complete() || last != nil && !slices.ContainsFunc(latest.Diff(last, t.Entries()), differs) {
			continue
		}
		last = t.Entries()
		err := m.write(last)
		if m.unstored.Store(&err); err != nil {
			last = nil // until it can be stored, also if it becomes what the file has
		}
		latest.Sleep(ctx, rememberEvery)
	}
}

// Unstored returns why the APIServices of etcd cannot be stored for a start without it. Nil: they are, or need not be.
func (r *Registry) Unstored() error { return ptr.Deref(r.sources.remembered.unstored.Load(), nil) }

func (m *remembered) write(entries []*Entry) error {
	list := apiregistrationv1.APIServiceList{TypeMeta: metav1.TypeMeta{
		APIVersion: apiregistrationv1.SchemeGroupVersion.String(), Kind: kindOfList,
	}}
	for _, e := range entries {
		if e.Object.ResourceVersion != "" { // others are in a directory, or of the local apiserver
			list.Items = append(list.Items, *e.Object)
		}
	}
	data, _ := json.Marshal(&list) // it cannot fail
	if len(data) > maxRemembered {
		return fmt.Errorf("%d bytes are more than %d", len(data), maxRemembered)
	}
	fresh := m.path + ".new"
	_ = os.Remove(fresh) // left by a process that was killed
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(fresh) }() // after the rename there is none
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(fresh, m.path)
}
