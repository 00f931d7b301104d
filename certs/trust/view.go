package trust

import (
	"crypto/x509"
	"slices"
	"time"
)

// maxPrevious bounds the replaced roots that are kept at once. Four replacements within one overlap are a flapping installer, not a rotation.
const maxPrevious = 4

// view is what one backend is trusted by at one moment. It is immutable; every change makes another.
type view struct {
	// generation counts the views of a backend, from 1.
	generation uint64
	// name is verified against the leaf.
	name string
	// anyName leaves the name to crypto/tls: the local apiserver, whose every address may have another.
	anyName bool
	// insecure accepts anything.
	insecure bool
	// current are the roots to verify with. Nil: there are none, and fault says why.
	current *roots
	// fault is set when the newest bundle could not be used.
	fault *Error
	// previous are replaced roots still trusted, oldest first.
	previous []replaced
	// changed is when this view's roots came.
	changed time.Time
}

// replaced are roots on their way out.
type replaced struct {
	roots *roots
	until time.Time
}

// verify checks a chain at now. old tells that only replaced roots verified it.
func (v *view) verify(chain []*x509.Certificate, now time.Time) (got verified, old bool, err *Error) {
	if v.insecure {
		return verified{}, false, nil
	}
	if v.current != nil {
		if got, err = v.against(v.current, chain, now); err == nil {
			return got, false, nil
		}
	} else {
		err = v.fault
	}
	for _, p := range slices.Backward(v.previous) {
		if !now.Before(p.until) {
			continue
		}
		if got, olderr := v.against(p.roots, chain, now); olderr == nil {
			if p.until.Before(got.until) {
				got.until = p.until
			}
			return got, true, nil
		}
	}
	return verified{}, false, err
}

func (v *view) against(r *roots, chain []*x509.Certificate, now time.Time) (verified, *Error) {
	if v.anyName {
		return verifyAnyName(chain, r, now)
	}
	return verifyChain(chain, r, v.name, now)
}

// with returns the view after the bundle became next, or became unreadable (next nil, fault set). The overlap begins at now.
func (v *view) with(next *roots, fault *Error, overlap time.Duration, now time.Time) *view {
	n := *v
	n.generation++
	n.insecure = false
	n.current, n.fault, n.changed = next, fault, now
	n.previous = live(v.previous, now)
	old := v.current
	switch {
	case v.insecure:
		// Verifying nothing is not a trust that could overlap.
		n.previous = nil
	case old == nil:
		// The last good ones are among the previous, with the time that they got when the fault came. What the repaired bundle drops from them is judged as if
		// the fault had never been.
		if next != nil {
			n.previous = edit(n.previous, next)
		}
	case next != nil && old.shares(next):
		n.previous = drop(n.previous, dropped(old, next))
	case overlap > 0:
		n.previous = append(n.previous, replaced{old, now.Add(overlap)})
	}
	if overlap <= 0 {
		n.previous = nil
	}
	if len(n.previous) > maxPrevious {
		n.previous = n.previous[len(n.previous)-maxPrevious:]
	}
	return &n
}

// skipping returns the view of a backend that is not verified at all.
func (v *view) skipping(now time.Time) *view {
	return &view{generation: v.generation + 1, name: v.name, insecure: true, changed: now}
}

// named returns the view with another name to verify.
func (v *view) named(name string) *view {
	n := *v
	n.generation++
	n.name = name
	return &n
}

// settled returns the view without replaced roots: an endpoint has shown that it has moved on, or their time is over.
func (v *view) settled(now time.Time, all bool) *view {
	n := *v
	n.generation++
	n.previous = nil
	if !all {
		n.previous = live(v.previous, now)
	}
	return &n
}

// overlapUntil is when the last replaced roots stop being trusted. Zero: there are none.
func (v *view) overlapUntil(now time.Time) (until time.Time) {
	for _, p := range live(v.previous, now) {
		if p.until.After(until) {
			until = p.until
		}
	}
	return until
}

// live returns a copy of the replaced roots whose time is not over.
func live(previous []replaced, now time.Time) []replaced {
	return slices.DeleteFunc(slices.Clone(previous), func(p replaced) bool { return !now.Before(p.until) })
}

// dropped are the CAs of old that next has not.
func dropped(old, next *roots) map[identity]bool {
	d := make(map[identity]bool)
	for id := range old.ids {
		if !next.ids[id] {
			d[id] = true
		}
	}
	return d
}

// drop takes CAs out of the replaced roots.
func drop(previous []replaced, ids map[identity]bool) []replaced {
	var out []replaced
	for _, p := range previous {
		if r := p.roots.without(ids); r != nil {
			out = append(out, replaced{r, p.until})
		}
	}
	return out
}

// edit applies to replaced roots what next says about them: those that share a CA with it lose the CAs that it lacks.
func edit(previous []replaced, next *roots) []replaced {
	for _, p := range previous {
		if p.roots.shares(next) {
			previous = drop(previous, dropped(p.roots, next))
		}
	}
	return previous
}
