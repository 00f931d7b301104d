package engine

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// A story is a script of steps, one a line. Clients are c, c2, …; connections to backends are b,
// b2, …, in the order of their dials.
//
//	anew  [<limit>=<n>…]            a new engine with the client c. Of the last one nothing may be left
//	client [new]                    another client; new: it has sent nothing yet
//	plan [<word>…]                  of the requests from now on, see setPlan
//	picks <upstream> <endpoint>     for plans to=<upstream>. An endpoint x/y uses the connections of x; x' is x after a Retire.
//	                                Pick of "panic" panics, and Release of x/panics
//	<peer> > <frame> [| <frame>…]   sends frames at once, see write
//	<peer> < [<frame> | <frame>…]   has seen exactly these since the last such step, but for what is usual
//	<peer> ~ <part> [| <part>…]     the same, but among others
//	<peer> ! <frame> [| <frame>…]   sends them; the client's stream is reset, or answered with 502 if a backend sent them
//	<peer> gets <id> <id>           GET on all these streams
//	<peer> uploads <id> <n>         sends DATA as far as the windows allow
//	breaks <code> <frames>          another client sends them, which ends its connection with the code
//	repeat <n> <peer> <frames> [, <peer> …]   "pass <duration>" may stand for a peer
//	flood <n> <peer> <frames> [, …] the same until the last one's connection ends as a flood, in round n
//	<peer> silent, takes, lost      takes no output, takes it again, has gone
//	<peer> closed                   has closed: what a silent one has not taken cannot be written
//	<peer> removed                  the driver has closed its connection
//	<peer> read, written            its connection's keys have been used for as much as they may
//	dials held, refused, ok         all from now on; ok: also those that are held
//	dial ok, refused                the oldest one that is held. Its backend sends no SETTINGS by itself
//	pass <duration>                 time passes
//	alive <duration> [<peer>…]      time passes, and they (or all) answer PINGs
//	spoil <peer> <id>               makes the end of the stream panic
//	eject, retire <endpoint> [<grace>]; drain <grace>
//	away [<duration>]               SendAway, once or at each tick
//	room [<peer>]                   MakeRoom, of its address, which no other has
//	leave <upstream>…               the connections with their watches, for "is left=…"
//	end <peer> <upstream> [watches] its long-running requests on that connection end, or only watches
//	handler <status> [<n>]          the answer of the n oldest handlers
//	continue true, false            may it send 100?
//	resume <n>                      the n-th parked request gets the present plan
//	ended [<n>] <reason> [<key>=<value>…] the oldest outcomes; ok: no reason
//	is <what>=<value>…              see value
func TestStories(t *testing.T) { story.Tell(t, tell) }

type teller struct {
	*rig
	at        string
	to        []string // the endpoints of the plan, or its upstream
	parks     bool     // the plan comes later
	panics    string   // which of the plan's callbacks does
	upstreams map[string]*Upstream
	picked    map[string]func() *Endpoint // by each upstream
	endpoints map[string]*Endpoint
	failures  map[string]int // calls of Endpoint.Failed
	idle      bool           // the last one was for a connection without requests
	parked    []func(Plan)
	left      []string
	says      []string
	why       Outcome // what Plan.Fail got
}

func tell(t *testing.T, script *story.Story) {
	var s *teller
	for at, words := range script.Steps() {
		if words[0] == "anew" {
			s.end()
			s = newTeller(t, words[1:])
		}
		s.at = at
		s.step(words, strings.Join(words[min(2, len(words)):], " "))
	}
	s.end()
}

func newTeller(t *testing.T, words []string) *teller {
	s := &teller{
		upstreams: map[string]*Upstream{}, picked: map[string]func() *Endpoint{}, endpoints: map[string]*Endpoint{}, failures: map[string]int{},
		rig: newRig(t, func(e *Engine) {
			limits := map[string]func(n int){
				"maxStreams":    func(n int) { e.MaxStreams = uint32(n) },
				"maxStreamID":   func(n int) { e.lim.maxStreamID = uint32(n) },
				"memory":        func(n int) { e.Memory = hold.New(int64(n)) },
				"maxHeader":     func(n int) { e.fields.Max = n },
				"backlogLimit":  func(n int) { e.lim.backlogLimit = n },
				"backendWindow": func(n int) { e.lim.backendWindow = int32(n) },
			}
			for _, w := range words {
				name, n, _ := strings.Cut(w, "=")
				limits[name](must.Get(strconv.Atoi(n))(t))
			}
		}),
	}
	s.decide = func(_ *wire.Head, resume func(Plan)) (Plan, bool) {
		if s.parks {
			s.parked = append(s.parked, resume)
			return Plan{}, false
		}
		return s.made(), true
	}
	s.setPlan(nil)
	s.client()
	return s
}

func (s *teller) end() {
	if s == nil {
		return
	}
	s.clean()
	must.Be(s.t, !s.t.Failed(), "%s: the world ends", s.at)
}

func (s *teller) named(name string) *Endpoint {
	ep := s.endpoints[name]
	if ep == nil {
		ep = s.endpoint(name)
		if via, _, shared := strings.Cut(name, "/"); shared {
			ep.Name, ep.Via = via, s.named(via)
		}
		ep.Value = strings.TrimSuffix(name, "'")
		if was, again := strings.CutSuffix(name, "'"); again {
			ep.Name = s.named(was).Name
		}
		if strings.HasSuffix(name, "/panics") {
			ep.Release = func() { s.inFlight--; panic("releasing") }
		}
		ep.Failed = func(_ error, idle bool) { s.failures[name]++; s.idle = idle }
		ep.Told = func(g *GoAway) { s.says = append(s.says, g.Error()) }
		s.endpoints[name] = ep
	}
	return ep
}

// setPlan sets the plan to what the words say. A list of endpoints is tried in turn.
func (s *teller) setPlan(words []string) {
	s.plan, s.rig.named, s.to, s.parks, s.panics = Plan{}, false, []string{"ep"}, false, ""
	p := &s.plan
	set := map[string]func(v string){
		"to":        func(v string) { s.to = strings.FieldsFunc(v, func(r rune) bool { return r == ',' }) }, // "" means none
		"named":     func(string) { s.rig.named = true },
		"parks":     func(string) { s.parks = true },
		"panics":    func(v string) { s.panics, s.e.Caught = v, func(any, []byte) {} }, // see made
		"retries":   func(v string) { p.Retries = s.number(v) },
		"wait":      func(v string) { p.Wait = s.duration(v) },
		"deadline":  func(v string) { p.Deadline = s.duration(v) },
		"long":      func(string) { p.LongRunning = true },
		"finite":    func(string) { p.Finite = true },
		"resumes":   func(string) { p.Resumes = true },
		"again":     func(string) { p.Again = true },
		"stays":     func(string) { p.Stays = true },
		"owner":     func(v string) { p.Owner = v },
		"apart":     func(string) { p.Apart = true },
		"goaway":    func(string) { p.GoAway = true },
		"unwelcome": func(string) { p.Unwelcome = true },
		"unpaid":    func(string) { p.Budget = func() bool { return false } },
		"remove":    func(v string) { p.Remove = func(name string) bool { return strings.HasPrefix(name, v) } },
		"hides":     func(v string) { p.RemoveResponse = func(name string) bool { return strings.HasPrefix(name, v) } },
		"set":       func(v string) { p.Set = append(p.Set, field(v, "set")) },
		"serve":     func(string) { p.Serve = http.NotFoundHandler() },
		"answer": func(v string) { // <status>,<bytes>
			status, n, _ := strings.Cut(v, ",")
			p.Answer = &Answer{s.number(status), []hpack.HeaderField{field(":status", status)}, []byte(strings.Repeat("e", s.number(n)))}
		},
		"fail": func(string) { p.Fail = func(o Outcome) http.Handler { s.why = o; return http.NotFoundHandler() } },
		"rejects": func(string) { // redirects
			p.Accept = func(status int, _ bool) http.Handler {
				if status < 300 {
					return nil
				}
				return http.NotFoundHandler()
			}
		},
	}
	story.Set(s.t, s.at, words, set)
}

func (s *teller) made() Plan {
	var eps []*Endpoint
	var of *Upstream
	for _, name := range s.to {
		if of = s.upstreams[name]; of == nil {
			eps = append(eps, s.named(name))
		}
	}
	p := s.forward(eps...)
	if s.plan.Serve != nil || s.plan.Answer != nil {
		p.Forward = nil
	} else if of != nil {
		p.Forward = of
	}
	switch s.panics {
	case "deciding":
		panic(s.panics)
	case "looking":
		p.Accept = func(int, bool) http.Handler { panic("looking at the head") }
	case "removing":
		p.RemoveResponse = func(string) bool { panic("removing a field") }
	case "failing":
		p.Fail = func(Outcome) http.Handler { panic("saying why it failed") }
	case "done":
		p.Done = func(Outcome) { panic("done") }
	}
	return p
}

func (s *teller) number(word string) int { return must.Get(strconv.Atoi(word))(s.t) }

func (s *teller) duration(word string) time.Duration { return must.Get(time.ParseDuration(word))(s.t) }

func (s *teller) member(name string) *peer {
	n := 1
	if len(name) > 1 {
		n = s.number(name[1:])
	}
	if name[0] == 'b' {
		return s.backend(n - 1)
	}
	for _, p := range s.peers {
		if p.c.side == up {
			n--
		}
		if n == 0 {
			return p
		}
	}
	s.t.Fatalf("%s: no client %s", s.at, name)
	return nil
}

// step performs a step; rest is its text after two words.
func (s *teller) step(words []string, rest string) {
	switch words[0] {
	case "anew":
	case "client":
		if len(words) > 1 {
			s.peer(s.e.AcceptClient())
		} else {
			s.client()
		}
	case "plan":
		s.setPlan(words[1:])
	case "picks":
		s.picks(words[1], words[2])
	case "dials", "dial":
		s.dials(words[0], words[1])
	case "pass":
		s.tick(s.duration(words[1]))
	case "alive":
		who := s.peers
		for i, w := range words[2:] {
			who = append(who[:i:i], s.member(w))
		}
		for end := s.e.now + s.duration(words[1]); s.e.now < end; {
			s.tick(min(time.Second, end-s.e.now))
			for _, p := range who {
				p.pong()
			}
		}
	case "spoil":
		s.member(words[1]).c.streams[uint32(s.number(words[2]))].ep = nil
		s.inFlight--
	case "eject":
		s.e.Eject(s.named(words[1]))
	case "retire":
		s.e.Retire(s.named(words[1]), s.duration(words[2]))
	case "drain":
		s.e.Drain(s.duration(words[1]))
	case "breaks":
		p := s.client()
		p.say("%s", rest)
		check.Same(s.t, true, p.c.closing && strings.HasSuffix(p.told(rest), " "+words[1]), "%s: ends as %s", s.at, words[1])
	case "repeat":
		rounds, _ := s.repeat(s.number(words[1]), strings.Split(rest, " , "))
		check.Same(s.t, words[1], strconv.Itoa(rounds), "%s: rounds", s.at)
	case "flood":
		check.Same(s.t, words[1], strconv.Itoa(s.flood(strings.Split(rest, " , "))), "%s: rounds", s.at)
	case "away":
		check.Same(s.t, false, s.e.SendAway(), "%s: more to do", s.at)
		if len(words) > 1 {
			for end := s.e.now + s.duration(words[1]); s.e.now < end; s.e.SendAway() {
				s.tick(TickEvery)
			}
		}
	case "room":
		var of *hold.Source
		if len(words) > 1 {
			of = s.e.Memory.Source("10.0.0.1")
			s.member(words[1]).c.Source = of
		}
		s.e.MakeRoom(of)
	case "leave":
		s.leave(words[1:]...)
	case "end":
		c := s.member(words[1]).c
		s.e.EndOn(func(other *Conn) bool { return c == other }, s.upstreams[words[2]], len(words) > 3)
	case "handler":
		n := 1
		if len(words) > 2 {
			n = s.number(words[2])
		}
		for _, l := range s.locals[:n] {
			l.End(s.number(words[1]), []hpack.HeaderField{field(":status", words[1])}, nil)
			s.run()
		}
		s.locals = s.locals[n:]
	case "continue":
		check.Same(s.t, words[1], fmt.Sprint(s.locals[0].Continue()), "%s: 100 is sent", s.at)
	case "resume":
		s.parked[s.number(words[1])-1](s.made())
	case "ended":
		n, err := strconv.Atoi(words[1])
		if err == nil {
			words = words[1:]
		}
		for range max(n, 1) {
			s.ended(words[1], words[2:])
		}
	case "is":
		for _, w := range words[1:] {
			what, want, _ := strings.Cut(w, "=")
			check.Same(s.t, want, fmt.Sprint(s.value(what)), "%s: %s", s.at, what)
		}
	default:
		s.speak(s.member(words[0]), words[1:], rest)
	}
	s.run()
}

func (s *teller) picks(upstream, endpoint string) {
	pick := func() *Endpoint { s.inFlight++; return s.named(endpoint) }
	if endpoint == "panic" {
		s.e.Caught, pick = func(any, []byte) {}, func() *Endpoint { panic("picking") }
	}
	s.picked[upstream] = pick
	if s.upstreams[upstream] == nil {
		s.upstreams[upstream] = &Upstream{Retried: func(Reason) {}, Pick: func(any, []*Endpoint) *Endpoint { return s.picked[upstream]() }}
	}
}

func (s *teller) dials(step, how string) {
	s.refuse = nil
	switch step + " " + how {
	case "dial ok":
		s.dialEnds(nil)
	case "dial refused":
		s.dialEnds(errRefused)
	case "dials ok":
		s.heldDial = false
		for _, d := range s.held {
			s.dialled(d)
		}
		s.held = nil
	case "dials refused":
		s.heldDial, s.refuse = false, errRefused
	case "dials held":
		s.heldDial = true
	default:
		s.t.Fatalf("%s: unknown step", s.at)
	}
}

// leave calls Leave, and stores the connections on which the upstreams' watches are.
func (s *teller) leave(upstreams ...string) {
	of := map[*Upstream]bool{}
	for _, u := range upstreams {
		of[s.upstreams[u]] = true
	}
	s.left = nil
	s.e.Leave(func(u *Upstream) bool { return of[u] }, func(u *Upstream, c *Conn) {
		check.Same(s.t, true, of[u], "%s: called for an upstream that leaves", s.at)
		s.left = append(s.left, fmt.Sprint("b", 1+slices.IndexFunc(s.backends, func(b *peer) bool { return b.c == c })))
	})
}

func (s *teller) ended(reason string, words []string) {
	must.Be(s.t, len(s.outcomes) > 0, "%s: no request has ended", s.at)
	o := s.outcomes[0]
	s.outcomes = s.outcomes[1:]
	check.Same(s.t, strings.TrimPrefix(reason, "ok"), string(o.Reason), "%s: reason of %+v", s.at, o)
	endpoint := ""
	for name, ep := range s.endpoints {
		if ep == o.Endpoint {
			endpoint = name
		}
	}
	all := map[string]any{
		"status": o.Status, "err": strings.ReplaceAll(fmt.Sprint(o.Err), " ", "_"), "endpoint": endpoint, "retries": o.Retries,
		"received": o.Received, "sent": o.Sent, "duration": o.Duration, "wait": o.Wait, "answer": o.Answer,
	}
	for _, w := range words {
		what, want, _ := strings.Cut(w, "=")
		check.Same(s.t, want, fmt.Sprint(all[what]), "%s: %s", s.at, what)
	}
}

// value returns what "is" compares: a number, a list, or the state of a peer's connection.
func (s *teller) value(what string) any {
	name, of, _ := strings.Cut(what, ":")
	values := map[string]func() any{
		"backends": func() any { return len(s.backends) },
		"dials":    func() any { return strings.Join(s.dialling(), ",") }, // to these endpoints are held
		"left":     func() any { return strings.Join(s.left, ",") },
		"failed":   func() any { return s.failures[of] },                                          // times that an endpoint's failure was reported
		"said":     func() any { return strings.ReplaceAll(strings.Join(s.says, ","), " ", "_") }, // the GOAWAYs that were reported
		"idle":     func() any { return s.idle },
		"inflight": func() any { return s.inFlight },
		"outcomes": func() any { return len(s.outcomes) },
		"count":    func() any { return s.count(of) },
		"counted":  func() any { return s.e.held }, // bytes, of all connections
		"rests":    func() any { return s.e.Rests() },
		"pace":     func() any { return s.e.Pace() },
		"streams":  func() any { return len(s.member(of).c.streams) },
		"ready":    func() any { return s.member(of).c.ready.n },   // streams that get a turn
		"recv":     func() any { return s.member(of).c.recv },      // what it may still send
		"queued":   func() any { return s.member(of).c.queued },    // bytes of its bodies
		"heads":    func() any { return s.member(of).c.heads },     // bytes of those that are not answered
		"over":     func() any { return s.member(of).c.Over() },    // it is not read from
		"late":     func() any { return len(s.member(of).c.late) }, // resets that wait
		"why":      func() any { return s.why.Reason },
		"held": func() any { // bytes, also of its frames
			c := s.member(of).c
			return s.e.Count.Queued.Load() + s.e.Count.Output.Load() + int64(len(c.out)+len(c.in)+len(c.block))
		},
		"spares": func() any { // in free lists, and buffers
			b := s.e.buffers.Get()
			s.e.buffers.Put(b)
			return fmt.Sprintf("%v,%v", !s.e.empty(), b != nil)
		},
		"window": func() any { // what it may send on the first stream, also if credit for it was not returned yet
			h := s.member(of).c.streams[1].half[up]
			return h.recv + h.credit
		},
		"handler": func() any { // what the next handler is asked
			h := s.locals[0].head
			return h.Method + "," + h.Authority + "," + h.Target()
		},
	}
	if values[name] != nil {
		return values[name]()
	}
	switch p := s.member(name); {
	case p.shut:
		return "cut"
	case p.c.closing:
		return "closed"
	}
	return "open"
}

func (s *teller) dialling() (to []string) {
	for _, d := range s.held {
		for name, ep := range s.endpoints {
			if ep == d.ep {
				to = append(to, name)
			}
		}
	}
	return to
}

func (s *teller) count(name string) string {
	v := reflect.ValueOf(&s.e.Count).Elem().FieldByName(name)
	if v.Kind() == reflect.Struct {
		return fmt.Sprint(v.Addr().Interface().(*atomic.Int64).Load())
	}
	var each []string
	for _, n := range v.Seq2() {
		each = append(each, fmt.Sprint(n.Addr().Interface().(*atomic.Int64).Load()))
	}
	return strings.Join(each, ",")
}
