package loops

import (
	"fmt"
	"go/token"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// situation is a function with what is known where it is called. A function is walked once in each.
type situation struct {
	fn   *ssa.Function
	loop bool    // on a loop's goroutine
	held mutexes // when it is called
}

// walked is what is known of a situation.
type walked struct {
	exits   map[mutexes]bool   // what is held when the function returns
	callers map[situation]bool // to be walked again when exits grow
	from    situation          // the first caller
	at      token.Pos          // and its line
}

// walk finds what blocks or is expensive where it must not be.
type walk struct {
	p     *program
	seen  map[situation]*walked
	todo  []situation
	waits map[situation]bool     // those in todo
	found map[string][]string    // violations, each with the calls that lead there
	roots map[*ssa.Function]bool // functions that take a shard's mutex
	taken map[string]bool        // listed mutexes
	used  map[string]bool        // functions of outside.go
}

// run walks all functions, each of which may take a listed mutex, and entry on a loop.
func run(p *program, entry string) *walk {
	w := &walk{
		p: p, seen: map[situation]*walked{}, waits: map[situation]bool{}, found: map[string][]string{}, roots: map[*ssa.Function]bool{}, taken: map[string]bool{}, used: map[string]bool{},
	}
	for fn := range p.ours {
		w.arrive(situation{fn: fn}, situation{}, token.NoPos)
		if name(fn) == entry {
			w.arrive(situation{fn: fn, loop: true}, situation{}, token.NoPos)
		}
	}
	for len(w.todo) > 0 {
		s := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		w.waits[s] = false
		w.walk(s)
	}
	for _, b := range p.boundaries {
		if b.reason == "" {
			w.found[b.at+": a boundary without a reason"] = nil
		}
		if !b.crossed {
			w.found[b.at+": a boundary that nothing crosses"] = nil
		}
	}
	return w
}

// arrive returns what is known of a situation, which is walked later if it is new.
func (w *walk) arrive(s, from situation, at token.Pos) *walked {
	r := w.seen[s]
	if r == nil {
		r = &walked{exits: map[mutexes]bool{}, callers: map[situation]bool{}, from: from, at: at}
		w.seen[s] = r
		w.later(s)
	}
	if from.fn != nil {
		r.callers[from] = true
	}
	return r
}

func (w *walk) later(s situation) {
	if !w.waits[s] {
		w.waits[s] = true
		w.todo = append(w.todo, s)
	}
}

// walk walks one function in one situation.
func (w *walk) walk(s situation) {
	type place struct {
		block *ssa.BasicBlock
		held  mutexes
	}
	me := w.seen[s]
	before := len(me.exits)
	todo := []place{{s.fn.Blocks[0], s.held}}
	done := map[place]bool{todo[0]: true}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		now := map[mutexes]bool{at.held: true}
		for _, instr := range at.block.Instrs {
			now = each(now, func(held mutexes, next map[mutexes]bool) { w.step(moment{s, held}, instr, next) })
		}
		for _, b := range at.block.Succs {
			for held := range now {
				if to := (place{b, held}); !done[to] {
					done[to] = true
					todo = append(todo, to)
				}
			}
		}
	}
	if len(me.exits) > before {
		for c := range me.callers {
			w.later(c)
		}
	}
}

func each(now map[mutexes]bool, f func(held mutexes, next map[mutexes]bool)) map[mutexes]bool {
	next := map[mutexes]bool{}
	for held := range now {
		f(held, next)
	}
	return next
}

// moment is a point in a situation.
type moment struct {
	situation
	now mutexes // held there
}

// hurried reports whether others wait for what runs now.
func (m moment) hurried() bool { return m.loop || m.now != 0 }

// step adds what is held after an instruction to next.
func (w *walk) step(m moment, instr ssa.Instruction, next map[mutexes]bool) {
	switch instr := instr.(type) {
	case *ssa.Return:
		w.seen[m.situation].exits[m.now] = true
	case *ssa.RunDefers:
		now := map[mutexes]bool{m.now: true}
		for _, d := range deferred(m.fn, instr.Block()) {
			now = each(now, func(held mutexes, next map[mutexes]bool) { w.call(moment{m.situation, held}, d, next) })
		}
		maps.Copy(next, now)
		return
	case *ssa.Call:
		w.call(m, instr, next)
		return
	case *ssa.Send:
		w.violates(m, instr.Pos(), "sends on a channel")
	case *ssa.UnOp:
		if instr.Op == token.ARROW {
			w.violates(m, instr.Pos(), "receives from a channel")
		}
	case *ssa.Select:
		if instr.Blocking {
			w.violates(m, instr.Pos(), "waits in a select")
		}
	}
	next[m.now] = true
}

// deferred returns the calls that may be deferred when a block ends the function, in the order in which they run.
func deferred(fn *ssa.Function, end *ssa.BasicBlock) (calls []*ssa.Defer) {
	before := map[*ssa.BasicBlock]bool{}
	var back func(b *ssa.BasicBlock)
	back = func(b *ssa.BasicBlock) {
		if !before[b] {
			before[b] = true
			for _, p := range b.Preds {
				back(p)
			}
		}
	}
	back(end)
	for _, b := range fn.Blocks {
		for _, instr := range b.Instrs {
			if d, ok := instr.(*ssa.Defer); ok && before[b] {
				calls = append(calls, d)
			}
		}
	}
	slices.Reverse(calls)
	return calls
}

// call adds what is held after a call to next.
func (w *walk) call(m moment, site ssa.CallInstruction, next map[mutexes]bool) {
	c := site.Common()
	targets := w.p.callees[site]
	if f := c.StaticCallee(); f != nil {
		targets = []*ssa.Function{f}
	}
	_, builtin := c.Value.(*ssa.Builtin)
	switch crosses := m.hurried() && w.crosses(site.Pos()); {
	case crosses:
		if len(targets) != 1 || !w.p.ours[targets[0]] {
			w.callbacks(m, site) // a function that waits, but not in what it calls
		}
	case m.hurried() && c.IsInvoke():
		w.outsideInterface(m, site, targets)
	case m.hurried() && len(targets) == 0 && !builtin:
		w.unknown(m, site)
	}
	for _, f := range targets {
		w.enter(m, site, f, next)
	}
	if len(targets) == 0 {
		next[m.now] = true
	}
}

// enter adds what is held after a call of f to next.
func (w *walk) enter(m moment, site ssa.CallInstruction, f *ssa.Function, next map[mutexes]bool) {
	after := map[mutexes]bool{m.now: true}
	switch known := w.lock(m, site, f); {
	case known != nil:
		after = map[mutexes]bool{*known: true}
	case m.hurried() && w.crosses(site.Pos()):
	case m.hurried() && w.p.expensive[position(f)]:
		w.violates(m, site.Pos(), "calls "+name(f)+", which is expensive")
	case w.p.ours[f]:
		to := situation{fn: f}
		if m.hurried() {
			to.loop, to.held = m.loop, m.now
		}
		after = w.arrive(to, m.situation, site.Pos()).exits
	case m.hurried():
		w.outside(m, site, f)
	}
	for held := range after {
		if held&^m.now&shardMutex != 0 {
			w.roots[m.fn] = true
		}
		next[held] = true
	}
}

// crosses reports whether a line is a named boundary.
func (w *walk) crosses(at token.Pos) bool {
	b := w.p.boundaries[w.p.at(at)]
	if b != nil {
		b.crossed = true
	}
	return b != nil
}

// violates records a violation, if others wait for what runs now.
func (w *walk) violates(m moment, at token.Pos, text string) {
	key := w.p.at(at) + ": " + text
	if !m.hurried() || w.crosses(at) || w.found[key] != nil {
		return
	}
	how := name(m.fn) + " holds " + m.now.String()
	if m.loop {
		how += ", on a loop"
	}
	path := []string{how}
	for r := w.seen[m.situation]; r.from.fn != nil && len(path) < maxPath; r = w.seen[r.from] {
		path = append(path, fmt.Sprintf("called by %s at %s", name(r.from.fn), w.p.at(r.at)))
	}
	w.found[key] = path
}

const maxPath = 30 // how many calls are shown: from a frame to a decision there are some twenty

// name returns a function's name: of a generic one without type arguments, of ours without the module.
func name(f *ssa.Function) string {
	if o := f.Origin(); o != nil {
		f = o
	}
	return strings.ReplaceAll(f.RelString(nil), module+"/", "")
}

// position returns where a function's name is; nowhere for a wrapper.
func position(f *ssa.Function) token.Pos {
	if o := f.Origin(); o != nil {
		f = o
	}
	if f.Synthetic != "" {
		return token.NoPos
	}
	return f.Pos()
}
