package check

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// story is a Checker with invented records: the servers one and two may answer for the group alpha.
type story struct {
	*Checker
	journal bytes.Buffer
}

func tell() *story {
	s := &story{}
	s.Checker = New(slog.New(slog.NewJSONHandler(&s.journal, nil)))
	s.Allow("alpha", "one")
	s.Allow("alpha", "two")
	return s
}

func exchange(id string) Exchange {
	return Exchange{
		ID: id, Class: "read", Scopes: []string{"group:alpha", "plane"}, Group: "alpha", Version: "v1", User: "ann", Groups: []string{"crew"},
		Begun: time.Now(), Code: 200, Head: receipt(id), Body: receipt(id),
	}
}

func receipt(id string) *Receipt {
	return &Receipt{ID: id, Server: "one", GroupVersion: "alpha/v1", User: "ann", Groups: []string{"crew"}}
}

func (s *story) end(x Exchange, change ...func(*Exchange)) {
	for _, f := range change {
		f(&x)
	}
	x.Ended = time.Now()
	s.End(x)
}

// read records a successful request, which change may modify.
func (s *story) read(change ...func(*Exchange)) { s.end(exchange("r1"), change...) }

// write records a write that is executed so many times and succeeds, unless change modifies it.
func (s *story) write(executions int, change ...func(*Exchange)) {
	x := exchange("w1")
	x.Write, x.Sum = true, "abc"
	for _, f := range change {
		f(&x)
	}
	s.Begin(x)
	for range executions {
		s.Executed(*receipt("w1"), "abc")
	}
	s.end(x)
}

func (s *story) watch(change ...func(*Exchange)) {
	x := exchange("o1")
	x.Watch, x.Want, x.Body = true, 200, nil
	s.end(x, change...)
}

// during tells a story while a fault of the group is open.
func (s *story) during(f Fault, what func()) {
	f.Scopes = []string{"group:alpha"}
	defer s.Open(f).Close()
	what()
}

func cut(x *Exchange) { x.Code, x.Err, x.Head, x.Body = 0, "connection reset", nil, nil }

func interrupted(x *Exchange) { x.Err = "reset" }

func silence(x *Exchange) { cut(x); x.GaveUp = true }

func retry(x *Exchange) { status(503)(x); x.RetryAfter = true }

func garbled(x *Exchange) { x.Garbled = "half of it is missing" }

func invention(x *Exchange) { x.Head, x.Body = nil, nil }

func status(code int) func(*Exchange) {
	return func(x *Exchange) { x.Code, x.Head, x.Body = code, nil, nil }
}

// body changes the receipt in the body only.
func body(change func(*Receipt)) func(*Exchange) {
	return func(x *Exchange) { x.Head = nil; change(x.Body) }
}

// invented is a story with the violations that it contains.
type invented struct {
	name string
	want verdict
	tell func(*story)
}

// verdict is what is violated, each once. A standstill excuses it if it is only late.
type verdict struct {
	of   []Invariant
	late bool
}

func breaks(of ...Invariant) verdict { return verdict{of: of} }

func late(of Invariant) verdict { return verdict{of: []Invariant{of}, late: true} }

func stories() []invented {
	dead, liar := Fault{Kind: "dead"}, Fault{Kind: "garbage", Lies: true}
	return []invented{
		{"all is well", breaks(), func(s *story) { s.read(); s.write(1); s.watch() }},
		{"a wrong server", breaks(RightBackend), func(s *story) { s.read(body(func(r *Receipt) { r.Server = "three" })) }},
		{"two servers", breaks(OwnAnswer), func(s *story) { s.read(func(x *Exchange) { x.Head.Server = "two" }) }},
		{"a wrong version", breaks(RightBackend), func(s *story) { s.read(body(func(r *Receipt) { r.GroupVersion = "alpha/v2" })) }},
		{"a server that was removed", breaks(RightBackend), func(s *story) { s.Forbid("alpha", "one"); s.read(body(func(*Receipt) {})) }},
		{"a server that is added meanwhile", breaks(), func(s *story) {
			s.read(body(func(r *Receipt) { r.Server = "three"; s.Allow("alpha", "three") }))
		}},
		{"a server that is back", breaks(), func(s *story) { s.Forbid("alpha", "one"); s.Allow("alpha", "one"); s.read() }},
		{"another user", breaks(RightIdentity), func(s *story) { s.read(body(func(r *Receipt) { r.User = "bob" })) }},
		{"another group", breaks(RightIdentity), func(s *story) { s.read(body(func(r *Receipt) { r.Groups = []string{"crew", "masters"} })) }},
		{"a token that leaks", breaks(RightIdentity), func(s *story) { s.read(body(func(r *Receipt) { r.Leaked = "Authorization" })) }},
		{"another user at the local apiserver", breaks(RightIdentity), func(s *story) {
			s.read(body(func(r *Receipt) { r.User = "bob" }), func(x *Exchange) { x.Group = "" })
		}},
		{"somebody who must be refused", breaks(RightIdentity, Explained), func(s *story) {
			s.read(func(x *Exchange) { x.Want, x.User = 401, "" })
		}},
		{"somebody who is refused", breaks(), func(s *story) { s.read(status(401), func(x *Exchange) { x.Want = 401 }) }},
		{"another request's body", breaks(OwnAnswer), func(s *story) { s.read(body(func(r *Receipt) { r.ID = "r2" })) }},
		{"half a body", breaks(OwnAnswer), func(s *story) { s.read(garbled) }},
		{"an invented answer", breaks(Effect), func(s *story) { s.read(invention) }},
		{"a backend that invents answers", breaks(), func(s *story) { s.during(liar, func() { s.read(invention) }) }},
		{"an invented answer while a backend is only slow", breaks(Effect), func(s *story) { s.during(dead, func() { s.read(invention) }) }},

		{"executed twice", breaks(WrittenOnce), func(s *story) { s.write(2) }},
		{"executed for nobody", breaks(OwnAnswer), func(s *story) { s.Executed(*receipt("w9"), "") }},
		{"executed for another user", breaks(RightIdentity, RightIdentity), func(s *story) {
			s.write(1, func(x *Exchange) { x.User, x.Head = "bob", nil })
		}},
		{"executed with another body", breaks(OwnAnswer), func(s *story) { s.write(1, func(x *Exchange) { x.Sum = "abcdef" }) }},
		{"acknowledged and not executed", breaks(Effect), func(s *story) { s.write(0) }},
		{"cut in a fault, executed", breaks(), func(s *story) { s.during(dead, func() { s.write(1, cut) }) }},
		{"cut in a fault, not executed", breaks(), func(s *story) { s.during(dead, func() { s.write(0, cut) }) }},
		{"cut without an error", breaks(ExplicitEnd), func(s *story) { s.during(dead, func() { s.write(0, status(0)) }) }},
		{"executed, and told to try again", breaks(WrittenOnce), func(s *story) { s.during(dead, func() { s.write(1, retry) }) }},
		{"told to try again, and executed later", breaks(WrittenOnce), func(s *story) {
			s.during(dead, func() { s.write(0, retry) })
			s.Executed(*receipt("w1"), "abc")
		}},

		{"a failure without a fault", late(Explained), func(s *story) { s.read(status(503)) }},
		{"a failure in a fault of another group", late(Explained), func(s *story) {
			defer s.Open(Fault{Kind: "dead", Scopes: []string{"group:beta"}}).Close()
			s.read(status(503))
		}},
		{"a failure after the fault", late(Explained), func(s *story) { s.during(dead, func() {}); s.read(status(503)) }},
		{"a failure before the fault", late(Explained), func(s *story) {
			s.read(status(503), func(x *Exchange) { x.Begun = x.Begun.Add(-time.Second) })
			s.during(dead, func() {})
		}},
		{"a failure that began in the fault", breaks(), func(s *story) {
			s.read(status(503), func(x *Exchange) { s.during(dead, func() { x.Begun = time.Now().Add(-time.Second) }) })
		}},
		{"not found in a fault", breaks(Explained), func(s *story) { s.during(dead, func() { s.read(status(404)) }) }},
		{"not found while it is deleted", breaks(), func(s *story) {
			s.during(Fault{Kind: "deleted", Refusals: []int{404}}, func() { s.during(dead, func() { s.read(status(404)) }) })
		}},
		{"busy in a fault", breaks(), func(s *story) { s.during(dead, func() { s.read(status(429)) }) }},
		{"silence in a fault that answers", late(Explained), func(s *story) { s.during(dead, func() { s.read(silence) }) }},
		{"silence of what is stopped", breaks(), func(s *story) {
			s.during(Fault{Kind: "stopped", Silent: true}, func() { s.read(silence) })
		}},

		{"a watch with a hole in a fault", breaks(Watches), func(s *story) { s.during(dead, func() { s.watch(garbled) }) }},
		{"a watch at a liar", breaks(), func(s *story) { s.during(liar, func() { s.watch(garbled, invention) }) }},
		{"a watch that is cut for nothing", late(Explained), func(s *story) { s.watch(interrupted) }},
		{"a watch that is cut in a fault", breaks(), func(s *story) { s.during(dead, func() { s.watch(interrupted) }) }},
		{"a watch that is cut long after a fault", late(Explained), func(s *story) {
			s.during(dead, func() {})
			s.watch(func(x *Exchange) {
				s.windows[0].until, x.Begun, x.Err = time.Now().Add(-time.Minute), time.Now().Add(-time.Hour), "reset"
			})
		}},
		{"a watch that stalls", late(Explained), func(s *story) { s.watch(func(x *Exchange) { x.GaveUp = true }) }},
		{"a watch that stalls in a fault", breaks(), func(s *story) {
			s.during(dead, func() { s.watch(func(x *Exchange) { x.GaveUp = true }) })
		}},
		{"a watch of another", breaks(RightIdentity), func(s *story) { s.watch(func(x *Exchange) { x.Head.User = "bob" }) }},
		{"a watch that is refused in a fault", breaks(Explained), func(s *story) { s.during(dead, func() { s.watch(status(403)) }) }},

		{"a verdict that stays", late(Converges), func(s *story) { s.Converged("one", time.Minute, false, "unhealthy") }},
		{"a verdict that comes", breaks(), func(s *story) { s.Converged("one", time.Second, true, "") }},
		{"a leak", breaks(NothingLeft), func(s *story) { s.Must(NothingLeft, false, "101 goroutines") }},
	}
}

func (s *story) violated() (all []Invariant) {
	for _, v := range s.Violations() {
		all = append(all, v.Invariant)
	}
	return all
}

func TestChecker(t *testing.T) {
	for _, tt := range stories() {
		t.Run(tt.name, func(t *testing.T) {
			s := tell()
			tt.tell(s)
			check.Same(t, tt.want.of, s.violated(), "violations %q", s.Violations())
			check.Same(t, len(tt.want.of), strings.Count(s.journal.String(), `"VIOLATION"`), "violations in the journal")
		})
	}
}

// A standstill excuses lateness, and nothing else. What it excuses is reported.
func TestExcused(t *testing.T) {
	for _, tt := range stories() {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, slept := tell(), 0
				s.clock.Sleep = func(d time.Duration) { // the 20th time, the machine stands still
					if slept++; slept == 20 {
						d += 40 * time.Second
					}
					time.Sleep(d)
				}
				must.Run(t, func(ctx context.Context) error { s.KeepTime(ctx); return ctx.Err() })
				time.Sleep(42 * time.Second)
				tt.tell(s)
				if tt.want.late {
					tt.want.of = nil
				}
				check.Same(t, tt.want.of, s.violated(), "violations %q", s.Violations())
				var report bytes.Buffer
				must.Do(t, s.Report(&report))
				check.Same(t, tt.want.late, strings.Contains(report.String(), "late \""), "excused:\n%s", &report)
			})
		})
	}
}

// A failure is counted for the latest fault of its nearest scope.
func TestBlame(t *testing.T) {
	s := tell()
	s.Open(Fault{Kind: "far", Scopes: []string{"plane"}})
	s.Open(Fault{Kind: "near", Scopes: []string{"group:alpha"}})
	s.Open(Fault{Kind: "nearer", Scopes: []string{"group:alpha"}})
	s.during(Fault{Kind: "weak", Weak: true}, func() { s.read(status(503)) })
	var out bytes.Buffer
	must.Do(t, s.Report(&out))
	if line := "nearer        503  read  1\n"; !strings.Contains(out.String(), line) {
		t.Errorf("the report has no %q:\n%s", line, &out)
	}
	if !s.Disturbed("plane") || s.Disturbed("group:beta") {
		t.Error("Disturbed does not report what is broken")
	}
}
