package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/members"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// fleet is an apiserver with replicas that compare themselves.
type fleet struct {
	*testing.T
	api      *fake.Clientset
	version  atomic.Int64
	down     atomic.Bool // every call fails
	full     atomic.Bool // every write fails
	replicas map[string]*fellow
}

// fellow is one of them.
type fellow struct {
	*critical
	reaches atomic.Pointer[string] // names, with commas
	unready atomic.Bool            // by other checks
	stop    func()
}

func newFleet(t *testing.T) *fleet {
	objects := clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	f := &fleet{T: t, api: &fake.Clientset{}, replicas: map[string]*fellow{}}
	f.api.AddReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		verb := a.GetVerb()
		if f.down.Load() || f.full.Load() && verb != "list" {
			return true, nil, context.DeadlineExceeded
		}
		if w, ok := a.(interface{ GetObject() runtime.Object }); ok { // each write is another version
			w.GetObject().(*coordinationv1.Lease).ResourceVersion = fmt.Sprint(f.version.Add(1))
		}
		return clienttesting.ObjectReaction(objects)(a)
	})
	return f
}

// start runs a replica whose --critical-apiservices are names.
func (f *fleet) start(name, names, reaches string) {
	r := &fellow{}
	r.reaches.Store(&reaches)
	r.critical = &critical{names: strings.Split(names, ","), rest: func() bool { return !r.unready.Load() }, entry: func(name string) *registry.Entry {
		if name == "unknown" {
			return nil
		}
		e := &registry.Entry{}
		if slices.Contains(strings.Split(*r.reaches.Load(), ","), name) {
			e.Verdict.Status = "True"
		}
		return e
	}}
	r.others = members.New(members.Config{Client: f.api, Label: "fairlead.dev/critical-apiservices", Identity: name, Logger: slog.New(slog.DiscardHandler)})
	r.stop = must.Run(f, func(ctx context.Context) error { return members.Run(ctx, nil, r.says, r.round) })
	f.replicas[name] = r
}

func (f *fleet) ready() (names []string) {
	for name, r := range f.replicas {
		if !r.unready.Load() && r.gate(nil) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// do takes one step of a story.
func (f *fleet) do(at string, words ...string) {
	r := f.replicas[words[min(1, len(words)-1)]]
	switch words[0] {
	case "start": // replica --critical-apiservices [reached]
		f.start(words[1], words[2], strings.Join(words[3:], ""))
	case "reaches": // replica [names]
		r.reaches.Store(new(strings.Join(words[2:], "")))
	case "unready", "recovers": // by other checks
		r.unready.Store(words[0] == "unready")
	case "leave", "die": // a dead one keeps its Lease
		f.down.Store(words[0] == "die")
		r.stop()
		f.down.Store(false)
		delete(f.replicas, words[1])
	case "down", "full", "up":
		f.down.Store(words[0] == "down")
		f.full.Store(words[0] == "full")
	case "after": // duration [the replicas that are then ready]
		time.Sleep(must.Get(time.ParseDuration(words[1]))(f))
		synctest.Wait()
		check.Same(f.T, strings.Join(words[2:], " "), strings.Join(f.ready(), " "), "%s: ready", at)
	case "steady": // duration [the replicas that are ready all the time]
		for end := time.Now().Add(must.Get(time.ParseDuration(words[1]))(f)); time.Now().Before(end); {
			f.do(at, append([]string{"after", "125ms"}, words[2:]...)...)
		}
	case "leases": // number
		list := must.Get(f.api.CoordinationV1().Leases("kube-system").List(f.Context(), metav1.ListOptions{LabelSelector: "fairlead.dev/critical-apiservices"}))(f)
		check.Same(f.T, words[1], fmt.Sprint(len(list.Items)), "%s: Leases", at)
	case "looks": // replica [message]
		check.Same(f.T, strings.Join(words[2:], " "), r.look(time.Now()).Message, "%s: look", at)
	case "fails": // replica message
		check.Same(f.T, strings.Join(words[2:], " "), fmt.Sprint(r.gate(nil)), "%s: the gate", at)
	default:
		f.Fatalf("%s: unknown step %s", at, words[0])
	}
}

func (f *fleet) end() {
	for _, r := range f.replicas {
		r.stop()
	}
}

// Each story starts and ends replicas, and says which are ready when.
func TestCriticalStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, tale *story.Story) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			for at, words := range tale.Steps() {
				if words[0] == "anew" {
					f.end()
					f = newFleet(t)
					continue
				}
				f.do(at, words...)
			}
			f.end()
		})
	})
}
