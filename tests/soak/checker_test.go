package soak

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

// story is a checker with invented records: the servers one and two may answer for the group alpha.
type story struct {
	*checker
	journal bytes.Buffer
}

func tell() *story {
	s := &story{}
	s.checker = newChecker(slog.New(slog.NewJSONHandler(&s.journal, nil)))
	s.allow("alpha", "one")
	s.allow("alpha", "two")
	return s
}

func usual(id string) exchange {
	return exchange{
		ID: id, Class: "read", Scopes: []string{"group:alpha", "plane"}, Group: "alpha", Version: "v1", User: "ann", Groups: []string{"crew"},
		Begun: time.Now(), Code: 200, Head: usualReceipt(id), Body: usualReceipt(id),
	}
}

func usualReceipt(id string) *receipt {
	return &receipt{ID: id, Server: "one", GroupVersion: "alpha/v1", User: "ann", Groups: []string{"crew"}}
}

func (s *story) end(x exchange, change ...func(*exchange)) {
	for _, f := range change {
		f(&x)
	}
	x.Ended = time.Now()
	s.checker.end(x)
}

// read records a successful request, which change may modify.
func (s *story) read(change ...func(*exchange)) { s.end(usual("r1"), change...) }

// write records a write that is executed so many times and succeeds, unless change modifies it.
func (s *story) write(executions int, change ...func(*exchange)) {
	x := usual("w1")
	x.Write, x.Sum = true, "abc"
	for _, f := range change {
		f(&x)
	}
	s.begin(x)
	for range executions {
		s.executed(*usualReceipt("w1"), "abc")
	}
	s.end(x)
}

func (s *story) watch(change ...func(*exchange)) {
	x := usual("o1")
	x.Watch, x.Want, x.Body = true, 200, nil
	s.end(x, change...)
}

// during tells a story while a fault of the group is open.
func (s *story) during(f fault, what func()) {
	f.Scopes = []string{"group:alpha"}
	defer s.open(f).close()
	what()
}

func cut(x *exchange) { x.Code, x.Err, x.Head, x.Body = 0, "connection reset", nil, nil }

func interrupted(x *exchange) { x.Err = "reset" }

func silence(x *exchange) { cut(x); x.GaveUp = true }

func retry(x *exchange) { status(503)(x); x.RetryAfter = true }

func garbled(x *exchange) { x.Garbled = "half of it is missing" }

func invention(x *exchange) { x.Head, x.Body = nil, nil }

func status(code int) func(*exchange) {
	return func(x *exchange) { x.Code, x.Head, x.Body = code, nil, nil }
}

// body changes the receipt in the body only.
func body(change func(*receipt)) func(*exchange) {
	return func(x *exchange) { x.Head = nil; change(x.Body) }
}

// invented is a story with the violations that it contains.
type invented struct {
	name string
	want verdict
	tell func(*story)
}

// verdict is what is violated, each once. A standstill excuses it if it is only late.
type verdict struct {
	of   []invariant
	late bool
}

func breaks(of ...invariant) verdict { return verdict{of: of} }

func late(of invariant) verdict { return verdict{of: []invariant{of}, late: true} }

func stories() []invented {
	dead, liar := fault{Kind: "dead"}, fault{Kind: "garbage", Lies: true}
	return []invented{
		{"all is well", breaks(), func(s *story) { s.read(); s.write(1); s.watch() }},
		{"a wrong server", breaks(rightBackend), func(s *story) { s.read(body(func(r *receipt) { r.Server = "three" })) }},
		{"two servers", breaks(ownAnswer), func(s *story) { s.read(func(x *exchange) { x.Head.Server = "two" }) }},
		{"a wrong version", breaks(rightBackend), func(s *story) { s.read(body(func(r *receipt) { r.GroupVersion = "alpha/v2" })) }},
		{"a server that was removed", breaks(rightBackend), func(s *story) { s.forbid("alpha", "one"); s.read(body(func(*receipt) {})) }},
		{"a server that is added meanwhile", breaks(), func(s *story) {
			s.read(body(func(r *receipt) { r.Server = "three"; s.allow("alpha", "three") }))
		}},
		{"a server that is back", breaks(), func(s *story) { s.forbid("alpha", "one"); s.allow("alpha", "one"); s.read() }},
		{"another user", breaks(rightIdentity), func(s *story) { s.read(body(func(r *receipt) { r.User = "bob" })) }},
		{"another group", breaks(rightIdentity), func(s *story) { s.read(body(func(r *receipt) { r.Groups = []string{"crew", "masters"} })) }},
		{"a token that leaks", breaks(rightIdentity), func(s *story) { s.read(body(func(r *receipt) { r.Leaked = "Authorization" })) }},
		{"another user at the local apiserver", breaks(rightIdentity), func(s *story) {
			s.read(body(func(r *receipt) { r.User = "bob" }), func(x *exchange) { x.Group = "" })
		}},
		{"somebody who must be refused", breaks(rightIdentity, explained), func(s *story) {
			s.read(func(x *exchange) { x.Want, x.User = 401, "" })
		}},
		{"somebody who is refused", breaks(), func(s *story) { s.read(status(401), func(x *exchange) { x.Want = 401 }) }},
		{"another request's body", breaks(ownAnswer), func(s *story) { s.read(body(func(r *receipt) { r.ID = "r2" })) }},
		{"half a body", breaks(ownAnswer), func(s *story) { s.read(garbled) }},
		{"an invented answer", breaks(effect), func(s *story) { s.read(invention) }},
		{"a backend that invents answers", breaks(), func(s *story) { s.during(liar, func() { s.read(invention) }) }},
		{"an invented answer while a backend is only slow", breaks(effect), func(s *story) { s.during(dead, func() { s.read(invention) }) }},

		{"executed twice", breaks(writtenOnce), func(s *story) { s.write(2) }},
		{"executed for nobody", breaks(ownAnswer), func(s *story) { s.executed(*usualReceipt("w9"), "") }},
		{"executed for another user", breaks(rightIdentity, rightIdentity), func(s *story) {
			s.write(1, func(x *exchange) { x.User, x.Head = "bob", nil })
		}},
		{"executed with another body", breaks(ownAnswer), func(s *story) { s.write(1, func(x *exchange) { x.Sum = "abcdef" }) }},
		{"acknowledged and not executed", breaks(effect), func(s *story) { s.write(0) }},
		{"cut in a fault, executed", breaks(), func(s *story) { s.during(dead, func() { s.write(1, cut) }) }},
		{"cut in a fault, not executed", breaks(), func(s *story) { s.during(dead, func() { s.write(0, cut) }) }},
		{"cut without an error", breaks(explicitEnd), func(s *story) { s.during(dead, func() { s.write(0, status(0)) }) }},
		{"executed, and told to try again", breaks(writtenOnce), func(s *story) { s.during(dead, func() { s.write(1, retry) }) }},
		{"told to try again, and executed later", breaks(writtenOnce), func(s *story) {
			s.during(dead, func() { s.write(0, retry) })
			s.executed(*usualReceipt("w1"), "abc")
		}},

		{"a failure without a fault", late(explained), func(s *story) { s.read(status(503)) }},
		{"a failure in a fault of another group", late(explained), func(s *story) {
			defer s.open(fault{Kind: "dead", Scopes: []string{"group:beta"}}).close()
			s.read(status(503))
		}},
		{"a failure after the fault", late(explained), func(s *story) { s.during(dead, func() {}); s.read(status(503)) }},
		{"a failure before the fault", late(explained), func(s *story) {
			s.read(status(503), func(x *exchange) { x.Begun = x.Begun.Add(-time.Second) })
			s.during(dead, func() {})
		}},
		{"a failure that began in the fault", breaks(), func(s *story) {
			s.read(status(503), func(x *exchange) { s.during(dead, func() { x.Begun = time.Now().Add(-time.Second) }) })
		}},
		{"not found in a fault", breaks(explained), func(s *story) { s.during(dead, func() { s.read(status(404)) }) }},
		{"not found while it is deleted", breaks(), func(s *story) {
			s.during(fault{Kind: "deleted", Refusals: []int{404}}, func() { s.during(dead, func() { s.read(status(404)) }) })
		}},
		{"busy in a fault", breaks(), func(s *story) { s.during(dead, func() { s.read(status(429)) }) }},
		{"silence in a fault that answers", late(explained), func(s *story) { s.during(dead, func() { s.read(silence) }) }},
		{"silence of what is stopped", breaks(), func(s *story) {
			s.during(fault{Kind: "stopped", Silent: true}, func() { s.read(silence) })
		}},

		{"a watch with a hole in a fault", breaks(rightWatches), func(s *story) { s.during(dead, func() { s.watch(garbled) }) }},
		{"a watch at a liar", breaks(), func(s *story) { s.during(liar, func() { s.watch(garbled, invention) }) }},
		{"a watch that is cut for nothing", late(explained), func(s *story) { s.watch(interrupted) }},
		{"a watch that is cut in a fault", breaks(), func(s *story) { s.during(dead, func() { s.watch(interrupted) }) }},
		{"a watch that is cut long after a fault", late(explained), func(s *story) {
			s.during(dead, func() {})
			s.watch(func(x *exchange) {
				s.windows[0].until, x.Begun, x.Err = time.Now().Add(-time.Minute), time.Now().Add(-time.Hour), "reset"
			})
		}},
		{"a watch that stalls", late(explained), func(s *story) { s.watch(func(x *exchange) { x.GaveUp = true }) }},
		{"a watch that stalls in a fault", breaks(), func(s *story) {
			s.during(dead, func() { s.watch(func(x *exchange) { x.GaveUp = true }) })
		}},
		{"a watch of another", breaks(rightIdentity), func(s *story) { s.watch(func(x *exchange) { x.Head.User = "bob" }) }},
		{"a watch that is refused in a fault", breaks(explained), func(s *story) { s.during(dead, func() { s.watch(status(403)) }) }},

		{"a verdict that stays", late(converges), func(s *story) { s.converged("one", time.Minute, false, "unhealthy") }},
		{"a verdict that comes", breaks(), func(s *story) { s.converged("one", time.Second, true, "") }},
		{"a leak", breaks(nothingLeft), func(s *story) { s.must(nothingLeft, false, "101 goroutines") }},
	}
}

func (s *story) violated() (all []invariant) {
	for _, v := range s.found() {
		all = append(all, v.rule)
	}
	return all
}

func TestChecker(t *testing.T) {
	for _, tt := range stories() {
		t.Run(tt.name, func(t *testing.T) {
			s := tell()
			tt.tell(s)
			check.Same(t, tt.want.of, s.violated(), "violations %q", s.found())
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
				must.Run(t, func(ctx context.Context) error { s.keepTime(ctx); return ctx.Err() })
				time.Sleep(42 * time.Second)
				tt.tell(s)
				if tt.want.late {
					tt.want.of = nil
				}
				check.Same(t, tt.want.of, s.violated(), "violations %q", s.found())
				var report bytes.Buffer
				must.Do(t, s.report(&report))
				check.Same(t, tt.want.late, strings.Contains(report.String(), "late \""), "excused:\n%s", &report)
			})
		})
	}
}

// A failure is counted for the latest fault of its nearest scope.
func TestBlame(t *testing.T) {
	s := tell()
	s.open(fault{Kind: "far", Scopes: []string{"plane"}})
	s.open(fault{Kind: "near", Scopes: []string{"group:alpha"}})
	s.open(fault{Kind: "nearer", Scopes: []string{"group:alpha"}})
	s.during(fault{Kind: "weak", Weak: true}, func() { s.read(status(503)) })
	var out bytes.Buffer
	must.Do(t, s.report(&out))
	if line := "nearer        503  read  1\n"; !strings.Contains(out.String(), line) {
		t.Errorf("the report has no %q:\n%s", line, &out)
	}
	if !s.disturbed("plane") || s.disturbed("group:beta") {
		t.Error("Disturbed does not report what is broken")
	}
}
