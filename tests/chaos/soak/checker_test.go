package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// tale is a checker with invented records, while the machine runs or stands still.
type tale struct {
	*checker
	t             *testing.T
	still         time.Duration
	name          string
	want, excused []invariant
	repairs       map[string]func()
}

func usual(id string) exchange {
	receipts := [2]receipt{}
	for i := range receipts {
		receipts[i] = receipt{ID: id, Server: "one", GroupVersion: "alpha/v1", User: "ann", Groups: []string{"crew"}}
	}
	return exchange{
		ID: id, Class: "read", Scopes: []string{"group:alpha", "plane"}, Group: "alpha", Version: "v1", User: "ann", Groups: []string{"crew"},
		Begun: time.Now(), Code: 200, Head: &receipts[0], Body: &receipts[1],
	}
}

// change makes what the words of a step say.
func (s *tale) change(x *exchange, words []string) {
	for _, word := range words {
		code, err := strconv.Atoi(word)
		ago, begun := strings.CutPrefix(word, "ago=")
		switch {
		case err == nil:
			x.Code, x.Head, x.Body = code, nil, nil
		case begun:
			x.Begun = x.Begun.Add(-must.Get(time.ParseDuration(ago))(s.t))
		case word == "cut":
			x.Err = "connection reset"
		case word == "silent":
			x.GaveUp = true
		default:
			must.Do(s.t, json.Unmarshal([]byte(word), x))
		}
	}
}

// wait lets time pass, at whose end the machine may stand still.
func (s *tale) wait(d time.Duration) {
	slept := 0
	s.clock.Sleep = func(beat time.Duration) {
		if slept++; slept == 20 {
			beat += s.still
		}
		time.Sleep(beat)
	}
	time.Sleep(d)
	stop := must.Run(s.t, func(ctx context.Context) error { s.clock.Run(ctx); return ctx.Err() })
	time.Sleep(2*time.Second + s.still)
	stop()
}

// end checks that exactly the violations of a story were found. What a standstill excuses is reported.
func (s *tale) end() {
	s.t.Helper()
	var got []invariant
	for _, v := range s.violations() {
		got = append(got, v.rule)
	}
	check.Same(s.t, s.want, got, "%s: violations %v", s.name, s.found)
	var report bytes.Buffer
	must.Do(s.t, s.report(&report))
	check.Same(s.t, len(s.excused), strings.Count(report.String(), "excused true"), "%s: excused:\n%s", s.name, &report)
}

func (s *tale) step(words []string) {
	rest := strings.Join(words[1:], " ")
	switch words[0] {
	case "story":
		s.end()
		*s = tale{checker: newChecker(slog.New(slog.DiscardHandler)), t: s.t, still: s.still, name: rest, repairs: map[string]func(){}}
		s.may("alpha", "one", true)
		s.may("alpha", "two", true)
		s.wait(0)
	case "finds":
		s.want = append(s.want, invariant(rest))
	case "late":
		if s.still == 0 {
			s.want = append(s.want, invariant(rest))
		} else {
			s.excused = append(s.excused, invariant(rest))
		}
	case "may":
		s.may("alpha", words[1], words[2] == "true")
	case "fault":
		f := fault{Kind: words[1], Scopes: []string{"group:alpha"}}
		if len(words) > 2 {
			must.Do(s.t, json.Unmarshal([]byte(words[2]), &f))
		}
		s.repairs[words[1]] = s.open(f)
	case "repair":
		s.repairs[words[1]]()
	case "wait":
		s.wait(must.Get(time.ParseDuration(rest))(s.t))
	case "read", "watch":
		x := usual("r1")
		if x.Watch = words[0] == "watch"; x.Watch {
			x.Want, x.Body = 200, nil
		}
		s.change(&x, words[1:])
		x.Ended = time.Now()
		s.checker.end(x)
	case "write":
		x := usual("w1")
		x.Sum = "abc"
		s.change(&x, words[2:])
		s.begin(x)
		for range must.Get(strconv.Atoi(words[1]))(s.t) {
			s.executed(*usual("w1").Body, "abc")
		}
		x.Ended = time.Now()
		s.checker.end(x)
	case "executed":
		s.executed(*usual(words[1]).Body, "abc")
	case "converged":
		s.converged("one", must.Get(time.ParseDuration(words[1]))(s.t), words[2] == "true", "unhealthy")
	case "blames":
		check.Same(s.t, map[string]int{strings.Join(words[1:], "\t"): 1}, s.counts["failed while\thow\tclass"], "%s: failures", s.name)
	case "disturbed":
		check.Same(s.t, words[2] == "true", s.disturbed(words[1]), "%s: %s is disturbed", s.name, words[1])
	case "leak":
		s.must(nothingLeft, false, "101 goroutines")
	default:
		s.t.Fatalf("there is no step %s", words[0])
	}
}

func TestChecker(t *testing.T) {
	story.Tell(t, func(t *testing.T, script *story.Story) {
		for name, still := range map[string]time.Duration{"the machine runs": 0, "the machine stands still": 40 * time.Second} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &tale{checker: newChecker(slog.New(slog.DiscardHandler)), t: t, still: still}
					for _, words := range script.Steps() {
						s.step(words)
					}
					s.end()
				})
			})
		}
	})
}
