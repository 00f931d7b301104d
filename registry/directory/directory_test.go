package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/manifests"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Following a directory is tested with the table: registry/manifests_test.go.

// A file is read again unless it is certainly the same: its modification time may be too coarse to
// tell.
func TestUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	written := time.Now().Add(-time.Hour).Truncate(time.Second)
	write := func(text string, at time.Time) os.FileInfo {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		must.Do(t, os.Chtimes(path, at, at))
		return must.Get(os.Stat(path))(t)
	}
	f := &file{info: write("a: b", written), readAt: written.Add(time.Minute)}
	if !f.unchanged(write("a: b", written)) {
		t.Error("the same file is read again")
	}
	for name, info := range map[string]os.FileInfo{"later, of the same size": write("a: c", written.Add(time.Second)), "larger": write("a: bc", written)} {
		if f.unchanged(info) {
			t.Errorf("%s: not read again", name)
		}
	}
	must.Do(t, os.Rename(path, path+".old"))
	if f.unchanged(write("a: b", written)) {
		t.Error("replaced by a file of the same size and time: not read again")
	}
	must.Do(t, os.Rename(path+".old", path))
	for after, want := range map[time.Duration]bool{clockTick: false, clockTick + 1: true} {
		f.readAt = written.Add(after)
		check.Same(t, want, f.unchanged(write("a: b", written)), "read %s after it was written: unchanged", after)
	}
	if (&file{}).unchanged(f.info) {
		t.Error("never read: not read again")
	}
}

// A file that could not be read is read again, although nothing that a directory shows need change
// before it can be: its mode and owner, or how many files are open.
func TestUnreadIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	written := time.Now().Add(-time.Hour)
	must.Do(t, os.WriteFile(path, nil, 0o600))
	must.Do(t, os.Truncate(path, 8<<20)) // too large to be read
	must.Do(t, os.Chtimes(path, written, written))
	d := must.Get(New(Config{Path: filepath.Dir(path)}))(t)
	f := d.readFile(path, &file{})
	if len(f.faults) != 1 || !strings.HasPrefix(f.faults[0].Message, "reading file: ") {
		t.Fatalf("faults %v", f.faults)
	}
	if d.readFile(path, f) == f {
		t.Error("not read again")
	}
}

// A file that is written in place is taken when it is complete: neither while it is empty, nor
// while it has only some of its objects.
func TestWrittenInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	whole := manifests.Remote("g.io", "127.0.0.1", "")
	half, _, _ := strings.Cut(whole, "---")
	must.Do(t, os.WriteFile(path, []byte(whole), 0o600))
	d := must.Get(New(Config{Path: filepath.Dir(path)}))(t)
	d.read(d.list(), true)
	for _, step := range []struct {
		name, text      string
		renamed, old    bool
		again           bool
		objects, faults int
	}{
		{name: "emptied", again: true, objects: 3},
		{name: "half of it", text: half, again: true, objects: 3},
		{name: "left empty", old: true, objects: 3, faults: 1},
		{name: "all of it", text: whole, again: true, objects: 3, faults: 1},
		{name: "a while later", text: whole, old: true, objects: 3},
		{name: "another file in its place", text: half, renamed: true, objects: 1},
		{name: "left empty again", old: true, objects: 1, faults: 1},
		{name: "only a comment", text: "# none", old: true},
		{name: "empty before", old: true},
	} {
		to := path
		if step.renamed {
			to += ".new"
		}
		must.Do(t, os.WriteFile(to, []byte(step.text), 0o600))
		must.Do(t, os.Rename(to, path))
		if long := time.Now().Add(-time.Hour); step.old {
			must.Do(t, os.Chtimes(path, long, long))
		}
		check.Same(t, step.again, d.read(d.list(), false), "%s: to be read again", step.name)
		f := d.files[path]
		if len(f.objects) != step.objects || len(f.faults) != step.faults {
			t.Errorf("%s: %d objects, faults %v", step.name, len(f.objects), f.faults)
		}
	}
}

// A file that is renamed between the listing and its turn keeps its objects until the next listing,
// which has its new name.
func TestRenamedWhileReading(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	must.Do(t, os.WriteFile(path, []byte(manifests.Remote("g.io", "127.0.0.1", "")), 0o600))
	d := must.Get(New(Config{Path: filepath.Dir(path)}))(t)
	d.read(d.list(), true)
	before := d.list()
	must.Do(t, os.Rename(path, path+".yaml"))
	for _, step := range []struct {
		found listing
		again bool
	}{{before, true}, {d.list(), false}} {
		check.Same(t, step.again, d.read(step.found, false), "to be read again, of %v", step.found.files)
		d.publish(func(objects []runtime.Object, _ []Fault) {
			check.Same(t, 3, len(objects), "objects, of %v", step.found.files)
		}, nil)
	}
}

// While a directory cannot be read, only files below it are kept unseen. What is removed elsewhere,
// such as a binding to a role, is gone.
func TestRemovedBesideABrokenDirectory(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(dir, "1/2/3/4/5/6/7/8/9"), 0o700)) // too deep
	must.Do(t, os.Mkdir(filepath.Join(dir, "b"), 0o700))
	for _, name := range []string{"a.yaml", "b.yaml", "b/c.yaml"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	d := must.Get(New(Config{Path: dir}))(t)
	d.read(d.list(), true)
	must.Do(t, os.Remove(filepath.Join(dir, "a.yaml")))
	found := d.list()
	d.read(found, false)
	want := []string{filepath.Join(dir, "b.yaml"), filepath.Join(dir, "b", "c.yaml")}
	check.Same(t, want, d.paths(), "files")
	check.Same(t, want, found.files, "files listed, in order")
	files, faults := Files(dir)
	check.Same(t, found.files, files, "files for others")
	check.Same(t, found.faults, faults, "faults for others")
	for path, want := range map[string]bool{"1/2/3/4/5/6/7/8/9/c.yaml": true, "1/2/3/4/5/6/7/8/9/10/c.yaml": true, "1/2/3/4/5/6/7/8/99/c.yaml": false} {
		check.Same(t, want, found.lacks(filepath.Join(dir, path)), "%s may exist", path)
	}
}

// Objects stay the same pointers while nothing changes, so that no needless table is made.
func TestLocalKeepsItsObjects(t *testing.T) {
	list := &metav1.APIGroupList{Groups: []metav1.APIGroup{{Name: "b.io", Versions: []metav1.GroupVersionForDiscovery{{Version: "v1"}}}}}
	c := &rest.Config{Host: "http://localhost"}
	l := must.Get(newLocal(c, nil))(t)
	if a, b := l.objects(list), l.objects(list); len(a) != 1 || a[0] != b[0] {
		t.Errorf("objects %v and %v", a, b)
	}
	l.objects(&metav1.APIGroupList{})
	check.Same(t, 0, len(l.made), "objects that are kept of group-versions that are gone")
	check.Same(t, 0, c.Timeout, "timeout of the caller's configuration")
}

// The local apiserver's group-versions are sent when they change, not after every request. Those of
// an apiserver that starts late are sent soon, and none are taken back by one that has just
// started.
func TestLocalTellsChanges(t *testing.T) {
	listOf := func(names ...string) *metav1.APIGroupList {
		list := &metav1.APIGroupList{}
		for _, name := range names {
			list.Groups = append(list.Groups, metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{{Version: "v1"}}})
		}
		return list
	}
	synctest.Test(t, func(t *testing.T) {
		l := must.Get(newLocal(&rest.Config{Host: "http://localhost"}, slog.New(slog.DiscardHandler)))(t)
		var list atomic.Pointer[metav1.APIGroupList]
		l.groups = func(context.Context) (*metav1.APIGroupList, error) {
			if list.Load() == nil {
				return nil, errors.New("refused")
			}
			return list.Load(), nil
		}
		sent := make(chan []*apiregistrationv1.APIService, 9)
		go l.run(t.Context(), sent)
		for _, step := range []struct {
			name  string
			serve *metav1.APIGroupList
			wait  time.Duration
			want  int
		}{
			{"it has not started", nil, time.Minute, 0},
			{"it has just started", listOf("", "apiregistration.k8s.io"), time.Second, 0},
			{"it has read its APIServices", listOf("", "apiregistration.k8s.io", "b.io"), 2 * localAgain, 1},
			{"nothing changes", listOf("", "apiregistration.k8s.io", "b.io"), 10 * localInterval, 1},
			{"it has just restarted", listOf("", "apiregistration.k8s.io"), 10 * localInterval, 1},
			{"another group", listOf("c.io"), localInterval, 2},
		} {
			list.Store(step.serve)
			time.Sleep(step.wait)
			synctest.Wait()
			check.Same(t, step.want, len(sent), "%s: lists sent", step.name)
		}
	})
}

// A watch of a ConfigMap sends its initial state and its changes, not those of other objects.
func TestWatchTellsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		d := must.Get(New(Config{Path: dir}))(t)
		var sent []string
		go func() {
			_ = d.Watch(t.Context(), "x", "ca", func(m *corev1.ConfigMap) {
				text := "none"
				if m != nil {
					text = m.Data["a"]
				}
				sent = append(sent, text)
			})
		}()
		for i, step := range []struct{ file, text, want string }{
			{"other", "{name: b, namespace: x}", "[none]"},
			{"ca", "{name: ca, namespace: x}\ndata: {a: one}", "[none one]"},
			{"other", "{name: bb, namespace: x}", "[none one]"},
			{"ca", "{name: ca, namespace: x}\ndata: {a: three}", "[none one three]"},
		} {
			path, long := filepath.Join(dir, step.file+".yaml"), time.Now().Add(-time.Hour)
			must.Do(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: "+step.text+"\n"), 0o600))
			must.Do(t, os.Chtimes(path, long, long)) // so that only the size shows the change
			d.read(d.list(), true)
			d.publish(func([]runtime.Object, []Fault) {}, nil)
			synctest.Wait()
			check.Same(t, step.want, fmt.Sprint(sent), "step %d: sent", i)
		}
	})
}

// The roles get a new number exactly when a role or a binding changes.
func TestRolesAreNumbered(t *testing.T) {
	dir := t.TempDir()
	d := must.Get(New(Config{Path: dir}))(t)
	for i, step := range []struct {
		file, text string
		want       uint64
	}{
		{"role", "kind: ClusterRole\nmetadata: {name: a}\nrules: []\n", 1},
		{"binding", "kind: ClusterRoleBinding\nmetadata: {name: a}\nroleRef: {kind: ClusterRole, name: a}\n", 2},
		{"binding", "kind: ClusterRoleBinding\nmetadata: {name: a}\nroleRef: {kind: ClusterRole, name: b}\n", 3},
		{"role", "kind: ClusterRole\nmetadata: {name: aa}\nrules: []\n", 4},
		{"role", "kind: ClusterRole\nmetadata: {name: aa}\nrules: []\n", 4},
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, step.file+".yaml"), []byte("apiVersion: rbac.authorization.k8s.io/v1\n"+step.text), 0o600))
		d.read(d.list(), true)
		d.publish(func([]runtime.Object, []Fault) {}, nil)
		roles, bindings, got := d.Roles()
		if got != step.want || len(roles) != 1 || len(bindings) != min(i, 1) {
			t.Errorf("step %d: number %d, want %d; %d roles, %d bindings", i, got, step.want, len(roles), len(bindings))
		}
	}
}

func TestUIDs(t *testing.T) {
	a, b := string(uidOf("a")), string(uidOf("b"))
	if len(a) != 36 || a == b || a[14] != '8' || !strings.ContainsRune("89ab", rune(a[19])) || a[8] != '-' || a[23] != '-' {
		t.Errorf("%s, %s", a, b)
	}
}
