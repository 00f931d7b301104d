package backend

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// balanceEvery is how often client connections are counted. Each time a sixth of those that a
	// server has beyond its share may be asked to come again: nine of ten within a minute.
	balanceEvery = 5 * time.Second
	balanceMost  = 100 // limits them, to twenty handshakes a second
)

// localServer is a local apiserver, with its endpoint in each pool.
type localServer struct {
	of      [pools]*endpoint
	clients atomic.Int64 // client connections that stay
	spare   atomic.Int64 // how many of them may be asked to come again
	first   bool         // the first usable server is preferred, whatever their clients
	ready   atomic.Bool
	leaves  atomic.Bool // another one takes over, or serves until its documents have been read again
	fixed   Stay        // always here
	ended   time.Time   // is.Since when its watches ended. Only endWatches uses it

	// Guarded by Local.mu.
	is   registry.Endpoint
	left time.Time // if is.Terminating
	back bool      // others served while it was unhealthy, and not all documents know it again
}

// Stay is the local apiserver of one client connection, the same in all pools. Each server has a watch cache of its
// own, and during an upgrade group-versions of its own: a client of several goes back in time. It keeps its server
// while that is usable, else it moves to another. No method takes a lock. A nil Stay spreads requests. Extension
// servers have no place in it: seed gives their endpoints an order (view.own), and the servers in For.
type Stay struct {
	seed    uint64
	stuck   bool // whatever happens
	at      atomic.Pointer[localServer]
	counted atomic.Pointer[localServer] // in its clients; nil after the end
	over    atomic.Bool                 // not counted any more
}

// Stay returns that of a connection that lasts until ctx ends. l may be nil.
func (l *Local) Stay(ctx context.Context) *Stay {
	s := &Stay{seed: rand.Uint64()} //nolint:gosec // nobody gains by guessing
	context.AfterFunc(ctx, s.end)
	return s
}

// At returns a server's own Stay: whatever happens, its requests go there. If it is none any more, it is never Ready.
func (l *Local) At(address string) *Stay {
	if s := l.servers.Load().find(address); s != nil {
		return &s.fixed
	}
	return new(Stay)
}

// Ready reports whether the server is healthy.
func (s *Stay) Ready() bool {
	at := s.at.Load()
	return at != nil && at.ready.Load()
}

type told struct {
	known []string
	by    map[schema.GroupVersionResource][]string
}

// Only sets which of the servers known to a document serve what not all of them do: a resource, a group-version without
// one, or a path as the resource. A server that it does not know gets clients only if no other one can be used.
func (l *Local) Only(document string, known []string, by map[schema.GroupVersionResource][]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, now := l.told[document].known, l.servers.Load()
	l.told[document] = told{known, by}
	only := make(map[schema.GroupVersionResource][]*localServer)
	for _, told := range l.told {
		for what, addresses := range told.by {
			for _, a := range addresses {
				if s := now.find(a); s != nil {
					only[what] = append(only[what], s)
				}
			}
		}
	}
	l.only.Store(&only)
	if document == "discovery" { // OpenAPI's says nothing of resources
		l.alike.Store(new(len(by) == 0))
	}
	if !sets.New(was...).Equal(sets.New(known...)) {
		l.publishLocked(now.all, now.found)
	}
}

func (l *Local) unknownLocked(address string) bool {
	for _, told := range l.told {
		if !slices.Contains(told.known, address) {
			return true
		}
	}
	return false
}

// Told reports whether it is known, after a start, who serves what. Before, an older server might answer 404 for what
// only another one has, and controllers would take its objects for gone. One alone has no peers, once all were found.
func (l *Local) Told() bool {
	now := l.servers.Load()
	late := func(e registry.Endpoint) bool { return e.Health == registry.Healthy && time.Since(e.Since) > unread }
	return l.alike.Load() != nil || now.found && len(now.all) < 2 || slices.ContainsFunc(now.list, late)
}

// Alike reports that no resource is known that not all serve, so that one needs no For. Some paths differ by chance.
func (l *Local) Alike() bool { return ptr.Deref(l.alike.Load(), true) }

// For returns the Stay for a request: s or, for what not all serve, that of a server that does, if possible where s is.
// After a failure no other server is tried: its 404 would say that the objects are gone, and they would be lost.
func (l *Local) For(s *Stay, what schema.GroupVersionResource) *Stay {
	only := *l.only.Load()
	have := only[what]
	if have == nil {
		have = only[schema.GroupVersionResource{Group: what.Group, Version: what.Version}]
	}
	if len(have) == 0 {
		return s
	}
	by := cmp.Or(s, &have[0].fixed)
	if at := by.at.Load(); slices.Contains(have, at) && at.of[0].ill() == 0 {
		return &at.fixed
	}
	best := slices.MinFunc(have, func(a, b *localServer) int {
		return cmp.Or(cmp.Compare(a.of[0].ill(), b.of[0].ill()), cmp.Compare(a.of[0].rank(by), b.of[0].rank(by)))
	})
	path := strings.TrimPrefix(what.Resource, "/openapi/v3") // of whose documents other servers redirect to their own
	if strings.HasPrefix(path, "/api") && best.of[0].ill() == 3 {
		group, version, _ := strings.Cut(strings.TrimPrefix(path, "/apis/"), "/")
		if only[schema.GroupVersionResource{Group: group, Version: version}] == nil {
			return s // all have the group-version: any document of it is better than none
		}
	}
	return &best.fixed
}

// ill is 0 if requests may stay, 1 if only a dial takes long, 2 if it is suspect or its server leaves, 3 if unhealthy.
func (e *endpoint) ill() int {
	switch {
	case e.out.Load():
		return 3
	case e.suspicion.failing() || e.server.leaves.Load():
		return 2
	case e.suspicion.dialsLong():
		return 1
	}
	return 0
}

func (s *Stay) pick(u *Upstream, avoid []*endpoint) *endpoint {
	at, own, tried := s.at.Load(), (*endpoint)(nil), false
	if at != nil {
		own = at.of[u.pool-1]
		tried = slices.Contains(avoid, own)
		if s.stuck || !tried && own.ill() == 0 {
			return own
		}
	}
	v := u.view.Load()
	e := v.other(avoid)
	switch {
	case own != nil && (e == nil || !tried && e.ill() >= own.ill()): // no other is better
		return own
	case e == nil:
		return v.choose(0, nil)
	case own != nil && !tried && own.ill() == 1:
		return e // a busy server, too, lets a dial wait: only this request goes elsewhere
	}
	if s.at.CompareAndSwap(at, e.server) && !s.over.Load() {
		e.server.clients.Add(1)
		s.countAt(e.server)
		if s.over.Load() { // meanwhile
			s.countAt(nil)
		}
	}
	return s.at.Load().of[u.pool-1]
}

func (s *Stay) countAt(next *localServer) {
	if was := s.counted.Swap(next); was != nil {
		was.clients.Add(-1)
	}
}

func (s *Stay) end() {
	s.over.Store(true)
	s.countAt(nil)
}

// Leaves reports whether the client should come again over another connection: its server has more than its share.
func (s *Stay) Leaves() bool {
	if s == nil {
		return false
	}
	if at := s.counted.Load(); at == nil || at.spare.Load() <= 0 || at.spare.Add(-1) < 0 {
		return false
	}
	s.end()
	return true
}

// balance lets servers with more clients than others, as after one was restarted, send some away.
func (l *Local) balance() {
	var usable []*localServer
	sum := int64(0)
	for _, e := range l.pools[0].view.Load().preferred {
		if e.server.spare.Store(0); e.ill() == 0 {
			usable = append(usable, e.server)
			sum += e.server.clients.Load()
		}
	}
	for i, s := range usable {
		share := (sum + int64(len(usable)) - 1) / int64(len(usable))
		if s.first {
			share = max(0, sum*int64(1-i))
		}
		if more := s.clients.Load() - share - share/10; more > 0 {
			s.spare.Store(min((more+5)/6, balanceMost))
		}
	}
}

// endWatches ends the watches of servers that have long been unhealthy. One whose etcd is away sends neither events nor
// errors, and a client does not notice: all that it asks is answered elsewhere, so that it even stays the leader. Once:
// what comes later is of what only this server has.
func (l *Local) endWatches() {
	now := l.servers.Load()
	for i, s := range now.all {
		since := now.list[i].Since
		if !s.of[0].out.Load() || time.Since(since) < unready || s.ended.Equal(since) {
			continue
		}
		s.ended = since
		for _, v := range l.dialled.Range {
			if c := v.(*Conn); c.at.server == s { //nolint:forcetypeassert // nothing else is stored
				c.how.cut(c)
			}
		}
	}
}
