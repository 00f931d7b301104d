package health

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// A story is a list of worlds. In each a Prober probes servers at 10.0.0.1:443, the first address, and at others.
// Numbers count from 0; a duration may grow with the turns of repeat: 1m+7ms*i. A range is least..most, or one value.
//
//	anew  <option>…         claims=N APIServices with one Backend, or copies=N with one each; servers (without
//	                        a group-version), local or protected; at=N addresses, of which served=N have a
//	                        server; watched=N; http1; over=http1,http2: it is told with each; each=A,B: with
//	                        each in place of $each; a server's streams=N, idle=D, alpn=P, name=N or expired certificate; owner=N
//	run                     starts the Prober
//	host <state> [address]  see host.set
//	answer <word>…          see answer; other answers are only added for nth=N, every=N, claim=N and at=N
//	trust <kind> [takes]    see world.trust
//	table [<change>…]       the first table again, with none, with claims=N-M; anew: with another Backend;
//	                        interval=D; knows=healthy, =unhealthy, =unprobed or =slow; without-endpoints
//	crowd <N>               adds N endpoints of another Backend, which close all connections
//	pass <D>, next          lets time pass, until the next dial
//	alarm, renew            a Signal, a Renew; alarms <every> <D>: many; stray: some without effect
//	gate full|free          as many probes begin as may
//	traffic <D> <every> <T> <U>   is observed for so long: T at the first address, U at others
//	repeat <N> … end
//	mark                    dials and requests are counted from here
//
// The other steps check what is found out: look has them.
func TestStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, tale *story.Story) {
		var worlds [][]step
		for line, words := range tale.Steps() {
			if words[0] == "anew" {
				worlds = append(worlds, nil)
			}
			worlds[len(worlds)-1] = append(worlds[len(worlds)-1], step{filepath.Base(line), words})
		}
		for _, steps := range worlds {
			options := steps[0].words[1:]
			for _, protocol := range list(options, "over") {
				for _, each := range list(options, "each") {
					t.Run(strings.Join([]string{steps[0].line, protocol, each}, ":"), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							w := newWorld(t, append(with(each, options), protocol)...)
							w.tale, w.each = tale, each
							w.tell(steps[1:])
							w.end()
						})
					})
				}
			}
		}
	})
}

// list returns the values of an option, or one that is empty.
func list(options []string, option string) []string {
	for _, o := range options {
		if key, values, _ := strings.Cut(o, "="); key == option {
			return strings.Split(values, ",")
		}
	}
	return []string{""}
}

type step struct {
	line  string
	words []string
}

// with puts a value in place of $each.
func with(each string, words []string) (all []string) {
	for _, word := range words {
		if word = strings.ReplaceAll(word, "$each", each); word != "" {
			all = append(all, word)
		}
	}
	return all
}

// tell takes steps. What is between repeat and end is taken so many times.
func (w *world) tell(steps []step) {
	for i, s := range steps {
		if s.words[0] == "repeat" {
			n := slices.IndexFunc(steps, func(end step) bool { return end.words[0] == "end" })
			for w.turn = range int(w.value(s.words[1])) {
				w.tell(steps[i+1 : n])
			}
			w.turn = 0
			w.tell(steps[n+1:])
			return
		}
		w.line = s.line
		words := append(with(w.each, s.words), "")
		must.Be(w.t, w.act(words) || w.look(words), "%s: unknown step %s", w.line, words[0])
		synctest.Wait()
	}
}

// act takes a step that changes something.
func (w *world) act(words []string) bool {
	w.t.Helper()
	duration := func(i int) time.Duration { return time.Duration(w.value(words[i])) }
	switch first := w.all[0]; words[0] {
	case "run":
		w.run()
	case "host":
		w.host(cmp.Or(words[2], at)).set(words[1])
	case "answer":
		w.answer(words[1 : len(words)-1]...)
	case "trust":
		w.mu.Lock()
		defer w.mu.Unlock()
		w.trusts, w.handshake = words[1], time.Duration(w.value(cmp.Or(words[2], "0")))
	case "table":
		w.change(words[1 : len(words)-1])
	case "crowd":
		w.crowd(int(w.value(words[1])))
	case "pass":
		pass(duration(1))
	case "next":
		for n := w.dials(); w.dials() == n; {
			pass(time.Millisecond)
		}
	case "alarm":
		w.Signal(first.Name, at, errors.New("connection lost"))
	case "alarms":
		for range duration(2) / duration(1) {
			w.Signal(first.Name, at, errors.New("connection lost"))
			pass(duration(1))
		}
	case "stray":
		w.Signal(first.Name, at, nil)
		w.Signal(first.Name, "10.9.9.9:443", errors.New("at another address"))
		w.Signal("v1.other", at, errors.New("of another APIService"))
		w.Renew("v1.other")
	case "renew":
		w.Renew(first.Name)
	case "gate":
		for range gateSlots {
			if words[1] == "full" {
				w.gate <- struct{}{}
			} else {
				<-w.gate
			}
		}
	case "traffic":
		for i := range int(duration(1) / duration(2)) {
			address, took := first.Endpoints[i%len(first.Endpoints)].Address, duration(4)
			if address == at {
				took = duration(3)
			}
			w.Observe(first.Name, address, took)
			pass(duration(2))
		}
	case "mark":
		w.before = w.dials()
		w.mu.Lock()
		defer w.mu.Unlock()
		clear(w.requests)
	default:
		return false
	}
	return true
}

// change sets a table: the first one, or some of it, with changes.
func (w *world) change(changes []string) {
	entries := w.all
	edit := func(edit func(*registry.Entry)) {
		entries = slices.Clone(entries)
		for i, e := range entries {
			next := *e
			edit(&next)
			entries[i] = &next
		}
	}
	w.does(changes, map[string]func(v string){
		"none":   func(string) { entries = nil },
		"claims": func(v string) { entries = w.some(v) },
		"anew": func(string) {
			again := *entries[0].Backend
			edit(func(e *registry.Entry) { e.Backend = &again })
		},
		"interval": func(v string) {
			edit(func(e *registry.Entry) { e.Settings.ProbeInterval = time.Duration(w.value(v)) })
		},
		"knows": func(v string) {
			known := map[string]registry.Endpoint{
				"unprobed": {}, "unhealthy": {Health: registry.Unhealthy},
				"healthy": {Health: registry.Healthy}, "slow": {Health: registry.Healthy, Slow: true},
			}[v]
			known.Address = at
			edit(func(e *registry.Entry) { e.Endpoints = []registry.Endpoint{known} })
		},
		"without-endpoints": func(string) { edit(func(e *registry.Entry) { e.Endpoints = nil }) },
	})
	w.set(entries...)
}

// does calls what set has for each word of a step.
func (w *world) does(words []string, set map[string]func(v string)) {
	story.Set(w.t, w.line, words, set)
}

// some returns APIServices by number: N or N-M.
func (w *world) some(numbers string) []*registry.Entry {
	from, to, _ := strings.Cut(numbers, "-")
	return w.all[w.value(from) : w.value(cmp.Or(to, from))+1]
}

// crowd adds endpoints of another Backend that close all connections.
func (w *world) crowd(n int) {
	crowd := &registry.Entry{Name: "v1.crowd", GroupVersion: w.all[0].GroupVersion, Backend: &registry.Backend{ServerName: "crowd.svc"}}
	for i := range n {
		address := fmt.Sprintf("10.1.%d.%d:443", i/100, i%100)
		w.host(address).set("closing")
		crowd.Endpoints = append(crowd.Endpoints, registry.Endpoint{Address: address})
	}
	w.set(append(slices.Clone(w.all), crowd)...)
}

// value reads a number or, in nanoseconds, a duration.
func (w *world) value(text string) (sum int64) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	for term := range strings.SplitSeq(text, "+") {
		term, grows := strings.CutSuffix(term, "*i")
		d := must.Get(time.ParseDuration(term))(w.t)
		if grows {
			d *= time.Duration(w.turn)
		}
		sum += int64(d)
	}
	return sum
}

// APIServices come and go during rounds, answers are late or missing, and the process dies: at the
// end each has its verdict, and nothing is left. The bubble fails if a goroutine is.
func TestChangesAmidRounds(t *testing.T) {
	for _, protocol := range []string{"http1", "http2"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, "claims=20", "at=2", protocol)
				for _, words := range []string{"uneven=100ms", "every=11 closes", "every=13 403", "every=17 aborts", "every=31 hangs"} {
					w.answer(strings.Fields(words)...)
				}
				w.run()
				for i := range 120 {
					w.set(w.all[i%7 : 20-i%5]...)
					time.Sleep(time.Duration(i%11) * 50 * time.Millisecond)
					w.Signal(w.all[i%20].Name, at, errors.New("dial failed"))
					w.Renew(w.all[(i*7)%20].Name)
					if i%60 == 30 {
						w.host(at).set("refusing")
					}
					if i%60 == 33 {
						w.host(at).set("listening")
					}
				}
				w.set(w.all...)
				w.host(at).set("refusing")
				pass(7 * time.Second) // a hanging probe may have begun just before
				w.lookAt(false, nil)
				w.end()
			})
		})
	}
}
