package status

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Where no other controller writes Available, the elected replica writes it for stored APIServices;
// for a Local one only when it changes.
func TestAvailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored := func(name string) *registry.Entry {
			o := object(name)
			o.ResourceVersion = "1"
			return remote(o, "True", "Passed")
		}
		fresh, moved, file := stored("fresh"), stored("moved"), remote(object("file"), "True", "Passed")
		born := stored("born")
		born.Backend, born.Verdict.Reason = nil, "Local"
		s := newAPIServer(t, fresh.Object, moved.Object, file.Object)
		f, _ := startStored(t, s, nil, fresh, moved, file)
		time.Sleep(time.Second)
		s.wrote(t, "written", time.Time{}, "fresh", "moved")
		if body := s.patches[0].body; !strings.Contains(body, `"type":"Available"`) {
			t.Errorf("written: %s", body)
		}
		begun := time.Now()
		local := *moved
		local.Backend, local.Verdict.Reason = nil, "Local"
		f.set(fresh, &local, file, born)
		time.Sleep(time.Minute)
		s.wrote(t, "written later", begun, "moved")
	})
}

// startStored runs a writer that is elected by etcd until the test ends, or stop is called.
func startStored(t *testing.T, s *apiserver, log *slog.Logger, entries ...*registry.Entry) (f *feed, stop func()) {
	t.Helper()
	return run(t, s, Config{Logger: log, Elect: func(ctx context.Context, name string, lead func(context.Context)) error {
		check.Same(t, lease, name, "elected for")
		lead(ctx)
		return ctx.Err()
	}}, entries...)
}

// A foreign write is replaced at once. Against a writer that repeats it, the pauses grow, and it is
// named once.
func TestAvailableOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := object("a")
		o.ResourceVersion = "0"
		s := newAPIServer(t, o)
		var log bytes.Buffer
		_, stop := startStored(t, s, slog.New(slog.NewTextHandler(&log, nil)), remote(o, "True", "Passed"))
		time.Sleep(2 * time.Second)
		begun := time.Now()
		s.overwrite(t, "a", "Theirs")
		time.Sleep(time.Millisecond)
		s.has(t, "after another's write", "a", "Available=True Passed")
		check.Same(t, 1, len(s.since(begun)), "writes")
		for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if s.conditions(t, "a")[0] == "Available=True Passed" {
				s.overwrite(t, "a", "Theirs")
			}
		}
		if n := len(s.since(begun)); n < 12 || n > 20 { // ten that double, and six an hour
			t.Errorf("%d writes in an hour of foreign writes", n)
		}
		time.Sleep(2 * relist)
		s.has(t, "after the fight", "a", "Available=True Passed")
		stop()
		if p := s.patches[len(s.patches)-2:]; p[1].at.Sub(p[0].at) < relist {
			t.Errorf("at the end %s between two writes, want %s", p[1].at.Sub(p[0].at), relist)
		}
		check.Same(t, 1, strings.Count(log.String(), "another writer writes this condition"),
			"lines about the other writer in %s", log.String())
	})
}

// A foreign write that no watch shows, because it has ended, is replaced after a pause.
func TestAvailableAfterTheEndOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := object("a")
		o.ResourceVersion = "0"
		s, first := newAPIServer(t, o), watch.NewFake()
		var begun atomic.Bool
		s.fake.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) { return !begun.Swap(true), first, nil })
		startStored(t, s, nil, remote(o, "True", "Passed"))
		time.Sleep(2 * time.Second)
		first.Stop()
		s.overwrite(t, "a", "Theirs")
		time.Sleep(lastRetry + time.Second)
		s.has(t, "after the pause", "a", "Available=True Passed")
	})
}

// A Local APIService that was stored without a status gets one.
func TestAvailableOfLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		f, _ := startStored(t, s, nil)
		time.Sleep(2 * time.Second)
		born := object("born")
		born.ResourceVersion = "1"
		must.Do(t, s.tracker.Add(born))
		local := remote(born, "True", "Local")
		local.Backend = nil
		f.set(local)
		time.Sleep(2 * time.Second)
		s.has(t, "at the end", "born", "Available=True Local")
	})
}
