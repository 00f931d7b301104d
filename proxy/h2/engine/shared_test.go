package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// sharers are two upstreams, "a" and "b" (by :authority), that share the connections of one
// endpoint.
type sharers struct {
	*rig
	eps    map[string]*Endpoint // of each upstream
	ups    map[string]*Upstream
	apart  map[string]*Endpoint // upstream → the endpoint that it uses instead
	failed map[string]int       // calls of Endpoint.Failed
	ended  map[string][]Outcome
}

func newSharers(t *testing.T) *sharers {
	s := &sharers{
		rig: newRig(t), eps: map[string]*Endpoint{}, ups: map[string]*Upstream{}, apart: map[string]*Endpoint{}, failed: map[string]int{}, ended: map[string][]Outcome{},
	}
	for _, who := range []string{"a", "b"} {
		s.eps[who] = &Endpoint{Name: "ep", Via: s.ep, Release: func() { s.inFlight-- }, Failed: func(error) { s.failed[who]++ }}
		s.ups[who] = &Upstream{Pick: func([]*Endpoint) *Endpoint {
			s.inFlight++
			if ep := s.apart[who]; ep != nil {
				return ep
			}
			return s.eps[who]
		}}
	}
	s.decide = func(h *wire.Head, _ func(Plan)) (Plan, bool) {
		who := h.Authority
		return Plan{
			Forward: s.ups[who], LongRunning: strings.Contains(h.RawQuery, "watch"), Again: h.Method == "GET" && h.RawQuery == "", Retries: 2,
			Done: func(o Outcome) { s.ended[who] = append(s.ended[who], o) },
		}, true
	}
	return s
}

func (s *sharers) ask(c *peer, id uint32, who, method, path string) {
	c.send(id, true, ":method="+method, ":scheme=https", ":authority="+who, ":path="+path)
}

// leave calls Leave, and returns the backends (by number) whose connections have long-running
// requests of those upstreams.
func (s *sharers) leave(who ...string) (on []int) {
	set := map[*Upstream]bool{}
	for _, w := range who {
		set[s.ups[w]] = true
	}
	s.e.Leave(set, func(u *Upstream, c *Conn) {
		if !set[u] {
			s.t.Error("called for an upstream that does not leave")
		}
		on = append(on, slices.IndexFunc(s.backends, func(b *peer) bool { return b.c == c }))
	})
	s.run()
	return on
}

// newWatchers returns sharers with requests on one connection: 1 and 5 are watches of a and of b, 3
// is another request of a.
func newWatchers(t *testing.T) (s *sharers, c, b *peer) {
	s = newSharers(t)
	c = s.client()
	s.ask(c, 1, "a", "GET", "/?watch=1")
	s.ask(c, 3, "a", "GET", "/")
	s.ask(c, 5, "b", "GET", "/?watch=1")
	b = s.backend(0)
	b.see()
	return s, c, b
}

// Leave moves the requests that wait for a shared connection. Those that were sent continue, and
// the connections with watches are reported.
func TestLeave(t *testing.T) {
	s, c, b := newWatchers(t)
	s.heldDial = true
	b.c.drained = true // takes no more requests
	s.ask(c, 7, "a", "POST", "/")
	s.ask(c, 9, "b", "POST", "/")
	dialling := s.held[0]
	s.heldDial = false
	s.apart["a"] = s.endpoint("own")
	if on := s.leave("a"); !slices.Equal(on, []int{0}) {
		t.Errorf("its watches are on %v", on)
	}
	own := s.backend(1)
	own.want("SETTINGS", "WINDOW 0 1073676289", "HEADERS 1 :method=POST :scheme=https :authority=own :path=/ END", "SETTINGS ACK")
	own.respond(1, "made")
	b.want() // nothing happens on the shared one
	b.respond(3, "late")
	s.dialled(dialling)
	s.backend(2).respond(1, "b's")
	c.want("HEADERS 7 :status=200", `DATA 7 "made" END`, "HEADERS 3 :status=200", `DATA 3 "late" END`, "HEADERS 9 :status=200", `DATA 9 "b's" END`)
	if on := s.leave("a"); !slices.Equal(on, []int{0}) {
		t.Errorf("at the second call, its watches are on %v", on)
	}
	b.respond(1, "event")
	b.respond(5, "event")
	if on := s.leave("a", "b"); on != nil {
		t.Errorf("watches are reported on %v, want none", on)
	}
	s.ask(c, 11, "b", "GET", "/")
	if on := s.leave("b"); on != nil {
		t.Errorf("watches are reported on %v for a request that is not a watch", on)
	}
	s.backend(2).respond(3, "ok")
	s.clean()
}

// EndOn ends one upstream's watches on a connection, but no other watches or requests.
func TestEndOn(t *testing.T) {
	s, c, b := newWatchers(t)
	for _, id := range []uint32{1, 5} {
		b.headers(id, false, ":status=200")
	}
	b.flush()
	c.see()
	s.e.EndOn(func(*Conn) bool { return false }, s.ups["a"])
	s.run()
	b.want()
	end := func() {
		s.e.EndOn(func(c *Conn) bool { return c == b.c }, s.ups["a"])
		s.run()
	}
	end()
	b.want("RST 1 CANCEL")
	c.want(`DATA 1 "" END`)
	if o := s.ended["a"]; len(o) != 1 || o[0].Reason != ReasonRetired {
		t.Errorf("%+v", o)
	}
	b.respond(3, "ok")
	b.data(5, "event", true)
	c.want("HEADERS 3 :status=200", `DATA 3 "ok" END`, `DATA 5 "event" END`)
	s.lose(c, errRefused)
	s.e.remove(c.c)
	c = s.client() // its connection is younger than the backend's
	s.ask(c, 1, "a", "GET", "/?watch=1")
	b.begin(7)
	c.see()
	end()
	c.want(`DATA 1 "" END`)
	s.clean()
}

// An endpoint that is ejected for one upstream loses only that upstream's requests: those that wait
// for a connection, and those that may be repeated.
func TestEjectOfSharers(t *testing.T) {
	s := newSharers(t)
	c := s.client()
	s.ask(c, 1, "a", "GET", "/")
	s.ask(c, 3, "a", "POST", "/")
	s.ask(c, 5, "b", "GET", "/")
	s.ask(c, 7, "a", "GET", "/?watch=1")
	b := s.backend(0)
	b.see()
	s.eject(&Endpoint{Name: "ep", Via: s.ep})
	b.want()
	s.apart["a"] = s.endpoint("other")
	s.eject(s.eps["a"])
	b.want("RST 1 CANCEL")
	s.backend(1).respond(1, "again")
	b.respond(3, "made")
	b.respond(5, "b's")
	b.respond(7, "event")
	if o := s.ended["a"]; len(o) != 3 || o[0].Retries != 1 || o[0].Endpoint != s.apart["a"] {
		t.Errorf("%+v", o)
	}
	if o := s.ended["b"]; len(o) != 1 || o[0].Retries != 0 || o[0].Endpoint != s.eps["b"] {
		t.Errorf("%+v", o)
	}
	s.clean()
}

// A failure is reported once to each upstream whose requests it affects, and to no other.
func TestSharersHearOfFailures(t *testing.T) {
	s := newSharers(t)
	c := s.client()
	s.ask(c, 1, "a", "GET", "/?watch=1")
	s.ask(c, 3, "a", "GET", "/?watch=1")
	b := s.backend(0)
	b.headers(1, false, ":status=200")
	b.begin(3)
	s.lose(b, errors.New("broken"))
	if s.failed["a"] != 1 || s.failed["b"] != 0 || s.rig.failed != 1 {
		t.Errorf("a lost connection is reported %v, and %d times to its owner", s.failed, s.rig.failed)
	}
	s.refuse = errors.New("refused")
	s.ask(c, 5, "b", "POST", "/")
	if s.failed["a"] != 1 || s.failed["b"] != 3 || s.rig.failed != 4 { // three tries
		t.Errorf("failed dials are reported %v, and %d times to their owner", s.failed, s.rig.failed)
	}
	s.clean()
}
