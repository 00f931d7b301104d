package loops

import (
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// mutex is a mutex that a loop takes.
type mutex struct {
	name  string
	leaf  bool   // no other is taken under it
	nests bool   // another of the same name may be taken under it
	why   string // what is done under it
}

// listed are the mutexes that may be taken under a shard's or on a loop, in the order in which they
// are taken. Whoever holds one keeps the loop waiting, so nothing may block under them either.
var listed = []mutex{
	{name: "proxy/h2.shard.mu", why: "guards an engine"},
	{name: "proxy/backend.Pools.mu", why: "guards the pools of the applied table"},
	{name: "proxy/backend.Upstream.mu", nests: true, why: "guards endpoints: an APIService's, then its carrier's"},
	{name: "proxy/backend.endpoint.mu", why: "guards an endpoint's fields"},
	{name: "proxy/backend.shared.mu", leaf: true, why: "starts a goroutine, or reads a pointer"},
	{name: "proxy/h2.loop.mu", leaf: true, why: "looks up connections; adds one to epoll, which never waits"},
	{name: "proxy/h2.rawConn.mu", why: "appends output, or writes to a socket that does not block"},
	{name: "internal/spare.Buffers.mu", leaf: true, why: "a free list"},
	{name: "proxy/h2.resumptions.mu", leaf: true, why: "a list"},
	{name: "proxy.givenUp.mu", why: "charges a user"},
	{name: "registry/policy.buckets.mu", why: "makes a limit of a caller, in a bounded cache"},
	{name: "internal/memo.Cache.mu", leaf: true, why: "a look-up, and drops some entries"},
	{name: "internal/busiest.stripe.mu", leaf: true, why: "a look-up, and adds numbers"},
	{name: "internal/busiest.Callers.opens", leaf: true, why: "a look-up"},
	{name: "proxy/accesslog.stripe.mu", leaf: true, why: "appends a line"},
	{name: "proxy/accesslog.tap.mu", leaf: true, why: "appends a line"},
	{name: "internal/hold.Bound.mu", leaf: true, why: "a look-up"},
	{name: "internal/bound.Places.mu", leaf: true, why: "a look-up"},
	{name: "internal/bound.Tally.mu", leaf: true, why: "counts a refusal among a few"},
}

// mutexes is a set of listed mutexes, by their index.
type mutexes uint64

const shardMutex mutexes = 1 // the first

func (m mutexes) String() string {
	var names []string
	for i := range listed {
		if m&(1<<i) != 0 {
			names = append(names, listed[i].name)
		}
	}
	if len(names) == 0 {
		return "no mutex"
	}
	return strings.Join(names, ", ")
}

func (m mutexes) leaf() bool {
	for i := range listed {
		if m&(1<<i) != 0 && listed[i].leaf {
			return true
		}
	}
	return false
}

// lock handles the methods of mutexes: it returns what is held afterwards. It returns nil for all other functions.
func (w *walk) lock(m moment, site ssa.CallInstruction, f *ssa.Function) *mutexes {
	locks := false
	switch name(f) {
	case "(*sync.Cond).Wait":
		if m.loop || m.now != shardMutex {
			return nil
		}
		return &m.now // it releases the shard's mutex: all are on that
	case "(*sync.Mutex).Lock", "(*sync.RWMutex).Lock", "(*sync.RWMutex).RLock":
		locks = true
	case "(*sync.Mutex).Unlock", "(*sync.RWMutex).Unlock", "(*sync.RWMutex).RUnlock":
	default:
		return nil
	}
	mu := mutexName(site.Common().Args[0])
	i := slices.IndexFunc(listed, func(l mutex) bool { return l.name == mu })
	switch {
	case i < 0 && locks:
		w.violates(m, site.Pos(), "takes "+mu+", which is not listed")
	case i < 0:
	case locks:
		w.taken[mu] = true
		over := m.now >> i << i
		if listed[i].nests {
			over &^= 1 << i
		}
		if over != 0 || m.now.leaf() {
			w.violates(m, site.Pos(), "takes "+mu+" while it holds "+m.now.String())
		}
		m.now |= 1 << i
	default:
		m.now &^= 1 << i
	}
	return &m.now
}

// mutexName names a mutex by package, type and field.
func mutexName(x ssa.Value) string {
	if a, ok := x.(*ssa.FieldAddr); ok {
		t := a.X.Type().Underlying().(*types.Pointer).Elem() //nolint:forcetypeassert // of an address
		if n, ok := types.Unalias(t).(*types.Named); ok {
			o := n.Origin().Obj()
			return strings.TrimPrefix(o.Pkg().Path(), module+"/") + "." + o.Name() + "." + t.Underlying().(*types.Struct).Field(a.Field).Name() //nolint:forcetypeassert // it has a field
		}
	}
	return "a mutex of " + name(x.Parent())
}
