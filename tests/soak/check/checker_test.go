package check

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// story is a Checker with invented records: the servers one and two may answer for the group alpha.
type story struct {
	*Checker
	history *History
	journal bytes.Buffer
}

func tell() *story {
	s := &story{history: &History{}}
	s.Checker = New(Config{History: s.history, Journal: &Journal{Out: &s.journal}})
	s.history.Allow("alpha", "one")
	s.history.Allow("alpha", "two")
	return s
}

// read records a successful request, which change may modify.
func (s *story) read(change ...func(*Exchange)) {
	x := Exchange{
		ID: "r1", Class: "read", Scopes: []string{"group:alpha", "plane"}, Group: "alpha", Version: "v1", User: "ann", Groups: []string{"crew"},
		Begun: time.Now(), Code: 200, Head: receipt("r1"), Body: receipt("r1"),
	}
	for _, f := range change {
		f(&x)
	}
	x.Ended = time.Now()
	s.End(x)
}

func receipt(id string) *Receipt {
	return &Receipt{ID: id, Server: "one", GroupVersion: "alpha/v1", User: "ann", Groups: []string{"crew"}}
}

// write records a write that is executed so many times and succeeds, unless change modifies it.
func (s *story) write(executions int, change ...func(*Exchange)) {
	x := Exchange{
		ID: "w1", Class: "write", Scopes: []string{"group:alpha"}, Group: "alpha", Version: "v1", User: "ann", Groups: []string{"crew"}, Write: true, Sum: "abc",
		Begun: time.Now(), Code: 201, Head: receipt("w1"), Body: receipt("w1"),
	}
	for _, f := range change {
		f(&x)
	}
	s.Begin(x)
	for range executions {
		s.Executed(Execution{Receipt: *receipt("w1"), Sum: "abc"})
	}
	x.Ended = time.Now()
	s.End(x)
}

func cut(x *Exchange) { x.Code, x.Err, x.Head, x.Body = 0, "connection reset", nil, nil }

func status(code int) func(*Exchange) {
	return func(x *Exchange) { x.Code, x.Head, x.Body = code, nil, nil }
}

func (s *story) watch(change ...func(*Watch)) {
	w := Watch{
		Exchange: Exchange{
			ID: "o1", Class: "watch", Scopes: []string{"watch:alpha", "group:alpha"}, Group: "alpha", Version: "v1", User: "ann", Groups: []string{"crew"},
			Begun: time.Now(), Code: 200, Want: 200, Head: receipt("o1"),
		}, Events: 3,
	}
	for _, f := range change {
		f(&w)
	}
	w.Ended = time.Now()
	s.EndWatch(w)
}

func group(kind string) Fault { return Fault{Kind: kind, Scopes: []string{"group:alpha"}} }

// invented is a story with the violations that it contains.
type invented struct {
	name string
	tell func(*story)
	want []Invariant // each violated once
}

func TestChecker(t *testing.T) {
	for _, tt := range slices.Concat(answers(), writes(), failures()) {
		t.Run(tt.name, func(t *testing.T) {
			s := tell()
			tt.tell(s)
			var got []Invariant
			for _, v := range s.Violations() {
				got = append(got, v.Invariant)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("violations %+v, want of %q", s.Violations(), tt.want)
			}
			if n := strings.Count(s.journal.String(), `"VIOLATION"`); n != len(tt.want) {
				t.Errorf("%d violations in the journal, want %d", n, len(tt.want))
			}
			for line := range strings.Lines(s.journal.String()) {
				if !json.Valid([]byte(line)) {
					t.Errorf("not JSON: %q", line)
				}
			}
		})
	}
}

func answers() []invented {
	return []invented{
		{"all is well", func(s *story) { s.read(); s.write(1); s.watch() }, nil},
		{"a wrong server", func(s *story) { s.read(func(x *Exchange) { x.Head.Server, x.Body.Server = "three", "three" }) }, []Invariant{RightBackend, RightBackend}},
		{"a wrong version", func(s *story) { s.read(func(x *Exchange) { x.Version = "v2"; x.Head = nil }) }, []Invariant{RightBackend}},
		{"a server that was removed", func(s *story) { s.history.Forbid("alpha", "one"); s.read(func(x *Exchange) { x.Head = nil }) }, []Invariant{RightBackend}},
		{"a server that is removed meanwhile", func(s *story) { s.read(func(*Exchange) { s.history.Forbid("alpha", "one") }) }, nil},
		{"a server that is added meanwhile", func(s *story) {
			s.read(func(x *Exchange) { x.Head, x.Body.Server = nil, "three"; s.history.Allow("alpha", "three") })
		}, nil},
		{"a server that is back", func(s *story) { s.history.Forbid("alpha", "one"); s.history.Allow("alpha", "one"); s.read() }, nil},
		{"another user", func(s *story) { s.read(func(x *Exchange) { x.Head, x.Body.User = nil, "bob" }) }, []Invariant{RightIdentity}},
		{"another group", func(s *story) { s.read(func(x *Exchange) { x.Head, x.Body.Groups = nil, []string{"crew", "masters"} }) }, []Invariant{RightIdentity}},
		{"a token that leaks", func(s *story) { s.read(func(x *Exchange) { x.Head, x.Body.Leaked = nil, "Authorization" }) }, []Invariant{RightIdentity}},
		{"another user at the local apiserver", func(s *story) {
			s.read(func(x *Exchange) { x.Group, x.Head, x.Body = "", nil, &Receipt{User: "bob"} })
		}, []Invariant{RightIdentity}},
		{"somebody who must be refused", func(s *story) { s.read(func(x *Exchange) { x.Want, x.User = 401, "" }) }, []Invariant{RightIdentity, Explained}},
		{"somebody who is refused", func(s *story) { s.read(status(401), func(x *Exchange) { x.Want = 401 }) }, nil},
		{"another request's body", func(s *story) { s.read(func(x *Exchange) { x.Body = receipt("r2") }) }, []Invariant{OwnAnswer, OwnAnswer}},
		{"half a body", func(s *story) { s.read(func(x *Exchange) { x.Garbled = "half of it is missing" }) }, []Invariant{OwnAnswer}},
		{"an invented answer", func(s *story) { s.read(func(x *Exchange) { x.Head, x.Body = nil, nil }) }, []Invariant{Effect}},
		{"a backend that invents answers", func(s *story) {
			defer s.Open(Fault{Kind: "garbage", Scopes: []string{"group:alpha"}, Lies: true}).Close()
			s.read(func(x *Exchange) { x.Head, x.Body = nil, nil })
		}, nil},
		{"an invented answer while a backend is only slow", func(s *story) {
			defer s.Open(group("slow")).Close()
			s.read(func(x *Exchange) { x.Head, x.Body = nil, nil })
		}, []Invariant{Effect}},
	}
}

func writes() []invented {
	return []invented{
		{"executed twice", func(s *story) { s.write(2) }, []Invariant{WrittenOnce}},
		{"executed for nobody", func(s *story) { s.Executed(Execution{Receipt: *receipt("w9")}) }, []Invariant{OwnAnswer}},
		{"executed for another user", func(s *story) { s.write(1, func(x *Exchange) { x.User, x.Head, x.Body = "bob", nil, receipt("w1") }) }, []Invariant{RightIdentity, RightIdentity}},
		{"executed with another body", func(s *story) { s.write(1, func(x *Exchange) { x.Sum = "abcdef" }) }, []Invariant{OwnAnswer}},
		{"acknowledged and not executed", func(s *story) { s.write(0) }, []Invariant{Effect}},
		{"cut in a fault, executed", func(s *story) { defer s.Open(group("dead")).Close(); s.write(1, cut) }, nil},
		{"cut in a fault, not executed", func(s *story) { defer s.Open(group("dead")).Close(); s.write(0, cut) }, nil},
		{"cut without an error", func(s *story) {
			defer s.Open(group("dead")).Close()
			s.write(0, status(0))
		}, []Invariant{ExplicitEnd}},
		{"executed, and told to try again", func(s *story) {
			defer s.Open(group("dead")).Close()
			s.write(1, status(503), func(x *Exchange) { x.RetryAfter = true })
		}, []Invariant{WrittenOnce}},
		{"told to try again, and executed later", func(s *story) {
			defer s.Open(group("dead")).Close()
			s.write(0, status(503), func(x *Exchange) { x.RetryAfter = true })
			s.Executed(Execution{Receipt: *receipt("w1"), Sum: "abc"})
		}, []Invariant{WrittenOnce}},
		{"deferred, and found", func(s *story) {
			s.write(0, func(x *Exchange) { x.Deferred = true })
			s.Executed(Execution{Receipt: Receipt{ID: "w1"}})
			s.Settle(func(string) bool { return true })
		}, nil},
		{"deferred, and not found", func(s *story) {
			s.write(0, func(x *Exchange) { x.Deferred = true })
			s.Settle(func(id string) bool { return id == "w1" })
		}, []Invariant{Effect}},
		{"deferred, and not looked for yet", func(s *story) {
			s.write(0, func(x *Exchange) { x.Deferred = true })
			s.Settle(func(id string) bool { return id == "w2" })
		}, nil},
		{"deferred, and found twice", func(s *story) {
			s.write(0, func(x *Exchange) { x.Deferred = true })
			s.Executed(Execution{Receipt: Receipt{ID: "w1"}})
			s.Executed(Execution{Receipt: Receipt{ID: "w1"}})
		}, []Invariant{WrittenOnce}},
	}
}

func failures() []invented {
	return []invented{
		{"a failure without a fault", func(s *story) { s.read(status(503)) }, []Invariant{Explained}},
		{"a failure in a fault of another group", func(s *story) {
			defer s.Open(Fault{Kind: "dead", Scopes: []string{"group:beta"}}).Close()
			s.read(status(503))
		}, []Invariant{Explained}},
		{"a failure after the fault", func(s *story) { s.Open(group("dead")).Close(); s.read(status(503)) }, []Invariant{Explained}},
		{"a failure before the fault", func(s *story) {
			s.read(status(503), func(x *Exchange) { x.Begun = x.Begun.Add(-time.Second) })
			s.Open(group("dead"))
		}, []Invariant{Explained}},
		{"a failure that began in the fault", func(s *story) {
			w := s.Open(group("dead"))
			s.read(status(503), func(*Exchange) { w.Close() })
		}, nil},
		{"not found in a fault", func(s *story) { defer s.Open(group("dead")).Close(); s.read(status(404)) }, []Invariant{Explained}},
		{"not found while it is deleted", func(s *story) {
			defer s.Open(Fault{Kind: "deleted", Scopes: []string{"group:alpha"}, Refusals: []int{404}}).Close()
			defer s.Open(group("dead")).Close()
			s.read(status(404))
		}, nil},
		{"a watch that is forbidden in a fault", func(s *story) {
			defer s.Open(group("dead")).Close()
			s.watch(func(w *Watch) { w.Code, w.Head = 403, nil })
		}, []Invariant{Explained}},
		{"busy in a fault", func(s *story) { defer s.Open(group("dead")).Close(); s.read(status(429)) }, nil},
		{"silence in a fault that answers", func(s *story) {
			defer s.Open(group("dead")).Close()
			s.read(cut, func(x *Exchange) { x.GaveUp = true })
		}, []Invariant{Explained}},
		{"silence of what is stopped", func(s *story) {
			defer s.Open(Fault{Kind: "stopped", Scopes: []string{"plane"}, Silent: true}).Close()
			s.read(cut, func(x *Exchange) { x.GaveUp = true })
		}, nil},

		{"a watch with a hole", func(s *story) { s.watch(func(w *Watch) { w.Wrong = "event 4 after 2" }) }, []Invariant{Watches}},
		{"a watch with a hole in a fault", func(s *story) {
			defer s.Open(group("dead")).Close()
			s.watch(func(w *Watch) { w.Wrong = "event 4 after 2" })
		}, []Invariant{Watches}},
		{"a watch at a liar", func(s *story) {
			defer s.Open(Fault{Kind: "garbage", Scopes: []string{"group:alpha"}, Lies: true}).Close()
			s.watch(func(w *Watch) { w.Head, w.Wrong = nil, "no receipt" })
		}, nil},
		{"a watch that a backend begins wrongly and cuts", func(s *story) {
			defer s.Open(group("reset-body")).Close()
			s.watch(func(w *Watch) { w.Head, w.Err, w.Events = nil, "reset", 0 })
		}, nil},
		{"a watch that begins wrongly and is cut for nothing", func(s *story) {
			s.watch(func(w *Watch) { w.Head, w.Err, w.Events = nil, "reset", 0 })
		}, []Invariant{Explained}},
		{"a watch that is cut for nothing", func(s *story) { s.watch(func(w *Watch) { w.Err = "reset" }) }, []Invariant{Explained}},
		{"a watch that is cut in a fault", func(s *story) { defer s.Open(group("dead")).Close(); s.watch(func(w *Watch) { w.Err = "reset" }) }, nil},
		{"a watch that ends within an event", func(s *story) { s.watch(func(w *Watch) { w.Partial = true }) }, []Invariant{Watches}},
		{"a watch that stalls", func(s *story) { s.watch(func(w *Watch) { w.Stalled = true }) }, []Invariant{Watches}},
		{"a watch of another", func(s *story) { s.watch(func(w *Watch) { w.Head.User = "bob" }) }, []Invariant{RightIdentity}},
		{"a watch that is refused", func(s *story) {
			defer s.Open(group("dead")).Close()
			s.watch(func(w *Watch) { w.Code, w.Head = 503, nil })
		}, nil},

		{"a verdict that stays", func(s *story) { s.Converged("one", time.Minute, false, "unhealthy") }, []Invariant{Converges}},
		{"a verdict that comes", func(s *story) { s.Converged("one", time.Second, true, "") }, nil},
		{"a leak", func(s *story) { s.Left("goroutines", 101, 100) }, []Invariant{NothingLeft}},
		{"no leak", func(s *story) { s.Left("goroutines", 100, 100) }, nil},
		{"a drain that ends badly", func(s *story) { s.Must(ExplicitEnd, false, "exit status 2") }, []Invariant{ExplicitEnd}},
	}
}

func TestBlame(t *testing.T) {
	c := New(Config{})
	c.Open(Fault{Kind: "far", Scopes: []string{"plane"}})
	c.Open(group("near"))
	c.Open(group("nearer"))
	x := Exchange{ID: "1", Class: "read", Scopes: []string{"group:alpha", "plane"}, Begun: time.Now(), Ended: time.Now(), Code: 503}
	c.End(x)
	var out bytes.Buffer
	must.Do(t, c.Report(&out))
	for _, want := range []string{"nearer  1", "nearer        503", "near    1         0", "far     1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, &out)
		}
	}
	if !c.Disturbed("plane") || c.Disturbed("group:beta") {
		t.Error("Disturbed does not report what is broken")
	}
}
