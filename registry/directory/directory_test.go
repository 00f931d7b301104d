package directory

import (
	"context"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// The steps of these stories, in a bubble of its own time; files are real. Following a directory is
// told with the table: registry/testdata/directory.txtar.
//
//	write <path> <file>      in place
//	remote <path>            the same with the manifests of one remote API group
//	empty <path>
//	old <path>               it was written an hour ago
//	rename <path> <path>, remove <path>, folder <path>
//	list                     the directory is listed; before a read that does not list it
//	read [first]             and published
//	quiet                    the same, and nothing was to be published
//	expect <file>            whether to read again, the files, and what is published since
func TestStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, script *story.Story) {
		synctest.Test(t, func(t *testing.T) { tell(t, script) })
	})
}

func tell(t *testing.T, script *story.Story) {
	dir := t.TempDir()
	d := must.Get(New(Config{Path: dir}))(t)
	var listed *listing
	var published []Object
	again, sent := false, ""
	go func() { // ends with the test
		_ = d.Watch(t.Context(), "x", "ca", func(m *corev1.ConfigMap) {
			if m == nil {
				m = &corev1.ConfigMap{Data: map[string]string{"a": "none"}}
			}
			sent += " " + m.Data["a"]
		})
	}()
	synctest.Wait()
	for at, words := range script.Steps() {
		path := filepath.Join(dir, words[len(words)-1])
		if len(words) > 1 {
			path = filepath.Join(dir, words[1])
		}
		write := func(text string, at time.Time) {
			must.Do(t, os.WriteFile(path, []byte(text), 0o600))
			must.Do(t, os.Chtimes(path, at, at))
		}
		switch words[0] {
		case "write":
			write(script.File(t, words[2]), time.Now())
		case "remote":
			write(manifests.Remote("g.io", "127.0.0.1", ""), time.Now())
		case "empty":
			write("", time.Now())
		case "old":
			write(string(must.Get(os.ReadFile(path))(t)), time.Now().Add(-time.Hour))
		case "rename":
			must.Do(t, os.Rename(path, filepath.Join(dir, words[2])))
		case "remove":
			must.Do(t, os.Remove(path))
		case "folder":
			must.Do(t, os.MkdirAll(path, 0o700))
		case "list":
			listed = new(list(dir, d.parent))
		case "read", "quiet":
			if listed == nil {
				listed = new(list(dir, d.parent))
			}
			again = d.read(*listed, len(words) > 1, func(objects []Object, faults []Fault) {
				published = objects
				clear(faults) // they are its own: the policy adds to the first
				check.Same(t, "read", words[0], "%s: published", at)
			})
			synctest.Wait()
			listed = nil
		case "expect":
			var b strings.Builder
			fmt.Fprintf(&b, "read again: %v\n", again)
			for _, path := range sets.List(sets.KeySet(d.files)) {
				fmt.Fprintf(&b, "%s: %d objects\n", path, len(d.files[path].objects))
				for _, f := range d.files[path].faults {
					fmt.Fprintf(&b, "  %s\n", f)
				}
			}
			roles, bindings, number := d.Roles()
			fmt.Fprintf(&b, "published: %d objects, ", len(published))
			fmt.Fprintf(&b, "roles %d: %d of %d bindings, ConfigMap:%s\n", number, len(roles), len(bindings), sent)
			script.Expect(t, at, words[1], strings.ReplaceAll(b.String(), dir+"/", ""))
			sent = ""
		default:
			t.Fatalf("%s: unknown step %s", at, words[0])
		}
	}
	for _, o := range published {
		check.Same(t, true, o.Value.GetUID() != "" && o.Value.GetCreationTimestamp() != (metav1.Time{}), "%+v has an identity", o)
	}
}

// What a checkout or a script does in one go is read as a whole: a file that it removes and writes anew is never
// missed.
func TestOneGo(t *testing.T) {
	dir, published := t.TempDir(), make(chan int, 1000)
	write := func(name string) {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(manifests.Remote(name[:1]+".io", "127.0.0.1", "")), 0o600))
	}
	write("a.yaml")
	d := must.Get(New(Config{Path: dir}))(t)
	must.Run(t, func(ctx context.Context) error {
		return d.Run(ctx, func(objects []Object, _ []Fault) { published <- len(objects) })
	})
	check.Same(t, 3, <-published, "objects at first")
	for more := range 25 { // this machine may make a pause of its own
		must.Do(t, os.Remove(filepath.Join(dir, "a.yaml")))
		for begun := time.Now(); time.Since(begun) < settle/2; {
			write(".hidden.yaml")
		}
		write("a.yaml")
		write(fmt.Sprintf("%c.yaml", 'b'+more)) // its objects say that all was read
		least, now := 3*(more+2), 0
		for now != 3*(more+2) {
			now = <-published
			least = min(least, now)
		}
		if least >= 3*(more+1) {
			return
		}
	}
	t.Error("each time objects were missed")
}

// A file to which a link leads is watched where it is.
func TestLinkedFileIsWatched(t *testing.T) {
	dir, third := t.TempDir(), t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(third, "f"), nil, 0o600))
	must.Do(t, os.Symlink(filepath.Join(third, "f"), filepath.Join(dir, "a.yaml")))
	check.Same(t, []string{dir, third}, list(dir).directories, "directories")
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
	must.Be(t, len(f.faults) == 1 && strings.HasPrefix(f.faults[0].Message, "reading file: "), "faults %v", f.faults)
	check.Same(t, true, d.readFile(path, f) != f, "read again")
}

// While a directory cannot be read, files below it may exist unseen.
func TestBrokenDirectory(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(dir, "1/2/3/4/5/6/7/8/9"), 0o700)) // too deep
	must.Do(t, os.WriteFile(filepath.Join(dir, "a.yaml"), nil, 0o600))
	must.Do(t, os.Symlink("9", filepath.Join(dir, "9"))) // nobody can tell to what, as if a file system did not answer
	found := list(dir)
	files, faults := Files(dir)
	check.Same(t, found.files, files, "files for others")
	check.Same(t, found.faults, faults, "faults for others")
	for path, want := range map[string]bool{"1/2/3/4/5/6/7/8/9/c.yaml": true, "1/2/3/4/5/6/7/8/9/10/c.yaml": true, "1/2/3/4/5/6/7/8/99/c.yaml": false, "9/c.yaml": true} {
		check.Same(t, want, found.lacks(filepath.Join(dir, path)), "%s may exist", path)
	}
	unread := list(filepath.Join(dir, "a.yaml")) // the log says why, although nothing is published at the start
	check.Same(t, []string{filepath.Join(dir, "a.yaml")}, unread.directories, "watched, with %v", unread.faults)
}

// No directory makes this process hold more than a bounded number of files.
func TestTooManyFiles(t *testing.T) {
	dir, l := t.TempDir(), listing{files: make([]string, maxFiles-1)}
	for _, name := range []string{"a.yaml", "b.yaml", "c.yaml"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	l.walk(dir)
	check.Same(t, filepath.Join(dir, "a.yaml"), l.files[maxFiles-1], "the last file")
	check.Same(t, maxFiles, len(l.files), "files")
	check.Same(t, "reading directory: more than 20000 files, from b.yaml on", l.faults[0].Message, "fault")
}

// A file is read again unless it is certainly the same: its modification time may be too coarse to tell.
func TestUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	written := time.Now().Add(-time.Hour).Truncate(time.Second)
	write := func(text string, at time.Time) os.FileInfo {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		must.Do(t, os.Chtimes(path, at, at))
		return must.Get(os.Stat(path))(t)
	}
	first, later, larger, same := write("a: b", written), write("a: c", written.Add(time.Second)), write("a: bc", written), write("a: b", written)
	must.Do(t, os.Rename(path, path+".old"))
	replaced := write("a: b", written)
	for _, tt := range []struct {
		name string
		read time.Duration // after it was written
		now  os.FileInfo
		want bool
	}{
		{"the same", time.Minute, same, true},
		{"later, of the same size", time.Minute, later, false},
		{"larger", time.Minute, larger, false},
		{"replaced by a file of the same size and time", time.Minute, replaced, false},
		{"read within a tick", clockTick, same, false},
		{"read after a tick", clockTick + 1, same, true},
	} {
		f := &file{info: first, readAt: written.Add(tt.read)}
		check.Same(t, tt.want, f.unchanged(tt.now), "%s: unchanged", tt.name)
	}
	check.Same(t, false, (&file{}).unchanged(first), "never read: unchanged")
}

// groups lists groups with a version each.
func groups(names ...string) *metav1.APIGroupList {
	list := &metav1.APIGroupList{}
	for _, name := range names {
		list.Groups = append(list.Groups, metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{{Version: "v1"}}})
	}
	return list
}

// Objects stay the same pointers while nothing changes, so that no needless table is made.
func TestLocalKeepsItsObjects(t *testing.T) {
	list, c := groups("b.io"), &rest.Config{Host: "http://localhost"}
	l := must.Get(NewLocal(c, nil))(t)
	name := types.NamespacedName{Name: "v1.b.io"}
	l.made = l.objects(list)
	a, b := l.made, l.objects(list)
	check.Same(t, true, len(a) == 1 && a[name] == b[name], "objects %v and %v", a, b)
	check.Same(t, 0, len(l.objects(&metav1.APIGroupList{})), "objects of group-versions that are gone")
	check.Same(t, 0, c.Timeout, "timeout of the caller's configuration")
}

// The local apiserver's group-versions are sent when they change, not after every request. Those of an apiserver that
// starts late are sent soon, and none are taken back by one that has just started.
func TestLocalTellsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must.Get(NewLocal(&rest.Config{Host: "http://localhost"}, slog.New(slog.DiscardHandler)))(t)
		var list atomic.Pointer[metav1.APIGroupList]
		var asked atomic.Int64
		l.groups = func(context.Context) (*metav1.APIGroupList, error) {
			if asked.Add(1); list.Load() == nil {
				return nil, context.DeadlineExceeded
			}
			return list.Load(), nil
		}
		sent := make(chan map[types.NamespacedName]runtime.Object, 9)
		must.Run(t, func(ctx context.Context) error {
			return l.Run(ctx, func(all map[types.NamespacedName]runtime.Object) { sent <- all })
		})
		for _, step := range []struct {
			name  string
			serve *metav1.APIGroupList
			wait  time.Duration
			want  int
		}{
			{"it has not started", nil, time.Minute, 0},
			{"it has just started", groups("", "apiregistration.k8s.io"), time.Second, 0},
			{"it has read its APIServices", groups("", "apiregistration.k8s.io", "b.io"), 2 * localAgain, 1},
			{"nothing changes", groups("", "apiregistration.k8s.io", "b.io"), 10 * localInterval, 1},
			{"it has just restarted", groups("", "apiregistration.k8s.io"), 10 * localInterval, 1},
			{"another group", groups("c.io"), localInterval, 2},
		} {
			list.Store(step.serve)
			asked.Store(0)
			time.Sleep(step.wait)
			synctest.Wait()
			check.Same(t, step.want, len(sent), "%s: lists sent", step.name)
			check.Same(t, true, step.want <= 0 || asked.Load() <= int64(step.wait/localInterval)+1, "%s: asked %d times in %s", step.name, asked.Load(), step.wait)
		}
	})
}

func TestUIDs(t *testing.T) {
	a, b := string(uidOf("a")), string(uidOf("b"))
	check.Same(t, true, len(a) == 36 && a != b && a[14] == '8' && strings.ContainsRune("89ab", rune(a[19])) && a[8] == '-' && a[23] == '-', "%s, %s", a, b)
}
