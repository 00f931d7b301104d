package status

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

func TestMain(m *testing.M) { must.Main(m) }

// do takes one step of a story.
func (s *stage) do(at string, words ...string) {
	s.Helper()
	rest := words[min(2, len(words)):]
	words = append(words, "")
	number := func(i int) int { return must.Get(strconv.Atoi(words[i]))(s) }
	duration := func(i int) time.Duration { return must.Get(time.ParseDuration(words[i]))(s) }
	r := s.replicas[words[1]]
	switch words[0] {
	case "object": // name [resourceVersion [condition...]]: as it is stored, and made anew if it was deleted
		s.put(s.T, words[1], append(rest, "")[0], rest[min(1, len(rest)):])
	case "delete": // name
		s.remove(s.T, words[1])
	case "replica": // with faults before it starts
		s.replicas[words[1]] = &replica{}
	case "writer", "etcd", "events": // replica entry...
		s.replicas[words[1]] = cmp.Or(r, &replica{})
		s.start(words[1], words[0], s.entries(nil, rest))
	case "set": // replica entry...
		r.set(s.entries(r, rest))
	case "flip": // replica times pause entry entry...: one after the other
		for i := range number(2) {
			entry := strings.ReplaceAll(words[4+i%(len(words)-5)], "#", fmt.Sprint(i))
			r.set(s.entries(r, []string{entry}))
			time.Sleep(duration(3))
		}
	case "fault": // replica [APIService text...]
		r.mu.Lock()
		r.faults = nil
		if len(rest) > 0 {
			r.faults = map[string]string{rest[0]: strings.Join(rest[1:], " ")}
		}
		r.mu.Unlock()
	case "rules": // replica namespace/configmap rule..., which may be "-"
		r.apply(s.T, rest[0], rest[1:])
	case "use": // replica rule times
		r.use(rest[0], number(3))
	case "stop": // replica
		r.stop()
	case "pass": // duration
		time.Sleep(duration(1))
	case "steal": // the Lease, until it expires
		s.steal(s.T)
	case "down", "up":
		s.down.Store(words[0] == "down")
	case "deny": // writes of an APIService
		s.denied.Store(&words[1])
	case "overwrite": // APIService reason
		s.overwrite(s.T, words[1], words[2])
	case "fight": // duration APIService reason: another writer repeats its condition
		for end := time.Now().Add(duration(1)); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if s.conditions(s.T, words[2])[0] != "Available=False/"+words[3] {
				s.overwrite(s.T, words[2], words[3])
			}
		}
	case "blind": // the first watch shows nothing
		s.blind.Store(true)
	case "end-watch": // the first one
		s.first.Stop()
	case "wrote": // APIService...: since the last such step
		check.Same(s.T, strings.Join(words[1:len(words)-1], " "), strings.Join(s.names(s.seen), " "), "%s: wrote", at)
		s.seen = len(s.names(0))
	case "writes", "calls": // at least, at most: since the last such step
		n := len(s.names(s.seen))
		if words[0] == "calls" {
			n = len(s.events()) - s.noticed
		}
		check.Same(s.T, true, n >= number(1) && n <= number(2), "%s: %d %s", at, n, words[0])
		s.seen, s.noticed = len(s.names(0)), len(s.events())
	case "slow": // the last two writes are so far apart
		if p := s.patches[len(s.patches)-2:]; p[1].at.Sub(p[0].at) < duration(1) {
			s.Errorf("%s: %s", at, p[1].at.Sub(p[0].at))
		}
	case "has": // APIService condition...
		check.Same(s.T, strings.Join(rest, " "), strings.Join(s.conditions(s.T, words[1]), " "), "%s: conditions", at)
	case "leading": // replica number
		check.Same(s.T, float64(number(2)), testutil.ToFloat64(r.writer.leading), "%s: leading", at)
	case "logged": // replica times words...
		check.Same(s.T, number(2), strings.Count(r.log.String(), strings.Join(words[3:len(words)-1], " ")), "%s: in %s", at, r.log.String())
	default:
		s.Fatalf("%s: unknown step %s", at, words[0])
	}
	synctest.Wait()
}

// Each story changes the tables of replicas, and says what they write.
func TestStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, tale *story.Story) {
		synctest.Test(t, func(t *testing.T) {
			s := &stage{}
			for at, words := range tale.Steps() {
				switch {
				case words[0] == "anew":
					for _, r := range s.replicas {
						r.stop()
					}
					s = &stage{T: t, apiserver: newAPIServer(t), replicas: map[string]*replica{}}
				case len(words) == 3 && words[0] == "bodies":
					var all []string
					for _, p := range s.patches[s.seen:] {
						all = append(all, p.body+"\n")
					}
					tale.Expect(t, at, words[2], strings.Join(all, ""))
				case len(words) == 3 && words[1] == ">":
					tale.Expect(t, at, words[2], strings.Join(s.events()[s.noticed:], "\n")+"\n")
					s.noticed = len(s.events())
				default:
					s.do(at, words...)
				}
			}
		})
	})
}

// A panic ends the process, and so its Lease. It does not wait for the watch of other writers'
// conditions: that ends only with the election.
func TestPanicEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := &stage{T: t, apiserver: newAPIServer(t)}, &replica{}
		r.set(nil)
		c := s.config(r)
		var broken atomic.Bool
		c.Table = func() latest.State[*registry.Entry] {
			if broken.Load() {
				panic("broken")
			}
			return r.table()
		}
		panicked := make(chan any, 1)
		c.Elect = func(ctx context.Context, _ string, lead func(context.Context)) error {
			defer func() { panicked <- recover() }()
			lead(ctx)
			return nil
		}
		go func() { _ = New(c).Run(t.Context()) }()
		synctest.Wait()
		broken.Store(true)
		r.set(nil)
		synctest.Wait()
		select {
		case v := <-panicked:
			check.Same(t, true, v == "broken", "it has ended with %v", v)
		default:
			t.Error("a panic waits for the watch")
		}
	})
}
