package registry

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func stored(group, service string) *apiregistrationv1.APIService {
	a := remoteService(group, "v1", service)
	a.UID = "etcd"
	return a
}

// The table from before etcd was read is not stored: a start without etcd would have nothing. What
// cannot be stored is stored later, although nothing changes.
func TestRememberedOnceComplete(t *testing.T) {
	file := filepath.Join(t.TempDir(), "later", "cache.json")
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(Config{}, nil)
		m := &remembered{path: file, log: slog.New(slog.DiscardHandler)}
		o := stored("a.io", "one")
		o.ResourceVersion = "7"
		m.seen(r.changes, map[types.NamespacedName]runtime.Object{{Name: o.Name}: o})
		must.Run(t, func(ctx context.Context) error { m.follow(ctx, r.Table); return ctx.Err() })
		synctest.Wait()
		_, err := os.Stat(file)
		check.Same(t, true, errors.Is(err, fs.ErrNotExist), "an empty table was stored: %v", err)
		r.changes.replace(kindService, nil)
		r.changes.replace(kindSlice, nil)
		must.Run(t, r.write)
		time.Sleep(mostPause) // virtual time: the table must exist by then
		synctest.Wait()
		check.Fault(t, "no such file", *m.unstored.Load(), "it cannot be stored")
		must.Do(t, os.Mkdir(filepath.Dir(file), 0o700))
		time.Sleep(2 * rememberEvery)
		synctest.Wait()
		check.Fault(t, "", *m.unstored.Load(), "it is stored")
		list := must.Get(m.read())(t)
		check.Same(t, true, len(list.Items) == 1 && list.Items[0].Name == o.Name, "stored %+v", list.Items)
	})
}

// Others may neither read nor choose what a start without etcd reads.
func TestRemembered(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cache.json")
	m := &remembered{path: file}
	must.Do(t, m.write([]*Entry{{Object: stored("a.io", "one")}}))
	check.Same(t, 0o600, must.Get(os.Stat(file))(t).Mode(), "mode")
	must.Get(m.read())(t)
	must.Do(t, os.Chmod(m.path, 0o644))
	check.Fault(t, "mode 0644", check.Err(m.read()), "reading what others can read")
	m.path = filepath.Join(t.TempDir(), "link")
	must.Do(t, os.Symlink(file, m.path))
	check.Same(t, true, check.Err(m.read()) != nil, "reading follows no link")
	for name, tc := range map[string]struct {
		make func(path string) error
		want string
	}{
		"fifo":    {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		"folder":  {func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
		"garbage": {func(path string) error { return os.WriteFile(path, []byte("\x00\x01"), 0o600) }, "invalid character"},
		"empty":   {func(path string) error { return os.WriteFile(path, nil, 0o600) }, "EOF"},
		"other":   {func(path string) error { return os.WriteFile(path, []byte(`{"kind":"List"}`), 0o600) }, `"List", want APIServiceList`},
		"half": {func(path string) error {
			return os.WriteFile(path, []byte(`{"kind":"APIServiceList","items":[{`), 0o600)
		}, "EOF"},
	} {
		m.path = filepath.Join(t.TempDir(), name)
		must.Do(t, tc.make(m.path))
		check.Fault(t, tc.want, check.Err(m.read()), "%s", name)
	}
	huge := stored("a.io", strings.Repeat("x", maxRemembered))
	huge.ResourceVersion = "1"
	check.Same(t, true, m.write([]*Entry{{Object: huge}}) != nil, "no more is written than would be read")
	// Writing does not follow a link in the file's place either, and leaves no temporary file.
	m.path = filepath.Join(t.TempDir(), "cache")
	must.Do(t, os.Symlink(file, m.path+".new"))
	must.Do(t, m.write(nil))
	left, err := os.ReadDir(filepath.Dir(m.path))
	_, bad := m.read()
	check.Same(t, true, err == nil && bad == nil && len(left) == 1, "%v %v %v", err, bad, left)
}

// If a watch ends within a revision, another list finds the events that it missed. That a server streams no lists, as
// one before Kubernetes 1.34, or refuses to, is no fault: what counts is how the list ends that follows.
func TestTornRevision(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	of, faults := &cluster{}, make(chan error, 9)
	lists, refusals := 0, []error{
		apierrors.NewInvalid(apiregistrationv1.SchemeGroupVersion.WithKind("APIService").GroupKind(), "", nil),
		apierrors.NewForbidden(apiregistrationv1.Resource("apiservices"), "", errors.New("cannot watch")),
	}
	l := &lister{torn: true, example: &apiregistrationv1.APIService{}, of: of, from: &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			faults <- of.fault()
			list := &apiregistrationv1.APIServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "4"}}
			if lists++; lists == 1 {
				list.Items = append(list.Items, *stored("a.io", "x"), *stored("b.io", "x"))
			}
			return list, nil
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, refusals[lists%2]
			}
			w := watch.NewFakeWithChanSize(1, false)
			if lists == 1 && o.ResourceVersion == "4" { // both are deleted at revision 5, the watch reports one
				gone := stored("a.io", "x")
				gone.ResourceVersion = "5"
				w.Delete(gone)
				w.Stop()
			}
			return w, nil
		},
	}}
	all := make(chan int, 9)
	l.set = func(types.NamespacedName, runtime.Object) {}
	l.replace = func(list map[types.NamespacedName]runtime.Object) { all <- len(list) }
	go l.reflect(ctx)
	for want := 2; want >= 0; want -= 2 {
		check.Same(t, want, must.Come(t, 10*time.Second, "a list", all), "entries in it")
		check.Fault(t, "", must.Come(t, 10*time.Second, "its request", faults), "of a server that streams no lists")
	}
}

// A list that is streamed is read when all of it has come. One that is cut each time begins anew for hours.
func TestStreamIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of, opened := &cluster{}, make(chan *watch.FakeWatcher)
		l := &lister{example: &apiregistrationv1.APIService{}, of: of, from: &cache.ListWatch{
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				w := watch.NewFake()
				opened <- w
				return w, nil
			},
		}}
		l.replace = func(map[types.NamespacedName]runtime.Object) {}
		must.Run(t, func(ctx context.Context) error { l.reflect(ctx); return ctx.Err() })
		var w *watch.FakeWatcher
		for _, want := range []string{"", "cut short", "cut short"} {
			if w != nil {
				w.Add(stored("a.io", "x"))
				w.Stop()
			}
			w = <-opened
			synctest.Wait()
			check.Fault(t, want, of.fault(), "while a list is streamed")
		}
		end := stored("a.io", "x")
		end.Annotations, end.ResourceVersion = map[string]string{metav1.InitialEventsAnnotationKey: "true"}, "5"
		w.Action(watch.Bookmark, end)
		synctest.Wait()
		check.Fault(t, "", of.fault(), "at its end")
	})
}

// What cannot be read is told until a watch of it is answered, but for what is forbidden. What may not be read from the
// start counts as empty, even if the refusal has no message. A permission that is revoked later takes nothing away.
func TestNotes(t *testing.T) {
	away, starting, listed := errors.New("away"), errors.New("still starting"), errors.New("none: a list succeeds")
	forbidden := func(message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Message: message}}
	}
	for _, tc := range []struct {
		name    string
		answers []error
		denied  int
		unread  string
	}{
		{"an outage", []error{nil, away, starting}, 0, "APIService: still starting"},
		{"an outage that has ended", []error{away, nil}, 0, ""},
		{"an outage of watches", []error{unanswered(1, "dial"), unanswered(3, "read tcp 10.0.0.1:4->10.0.0.2:443"), listed}, 0, "APIService: read tcp 10.0.0.2:443"},
		{"denied from the start", []error{forbidden("no"), forbidden("no")}, 1, ""},
		{"denied without a message", []error{forbidden(""), forbidden("")}, 1, ""},
		{"denied after an outage", []error{away, forbidden("no"), forbidden("no")}, 1, ""},
		{"denied later", []error{nil, forbidden("no")}, 0, ""},
		{"refused later", []error{nil, apierrors.NewUnauthorized("expired")}, 0, ""},
		{"only watches are denied", []error{listed, forbidden("no"), listed, forbidden("no"), listed, nil, forbidden("no")}, 0, ""},
	} {
		denied, of := 0, &cluster{}
		l := &lister{example: &apiregistrationv1.APIService{}, of: of, denied: func() { denied++ }, ready: true}
		for _, err := range tc.answers {
			if errors.Is(err, listed) {
				l.note(t.Context(), nil, false)
				continue
			}
			l.note(t.Context(), err, true)
		}
		check.Same(t, tc.denied, denied, "%s: times denied", tc.name)
		check.Fault(t, tc.unread, of.fault(), "%s: unread", tc.name)
	}
	of := &cluster{}
	(&lister{example: &apiregistrationv1.APIService{}, of: of}).note(&endsAfter{t.Context(), 1}, away, true)
	check.Fault(t, "", of.fault(), "of a kind that nobody needs any more")
}

// endsAfter is a context that ends after so many looks at it.
type endsAfter struct {
	context.Context
	looks int
}

func (c *endsAfter) Err() error {
	if c.looks--; c.looks < 0 {
		return context.Canceled
	}
	return nil
}
