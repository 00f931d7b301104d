package engine

import (
	"strings"
	"testing"
)

// A stream without window gets no turn until it has window again.
func TestNoTurnWithoutWindow(t *testing.T) {
	r := newRig(t)
	c := r.client()
	c.get(1)
	b := r.backend(0)
	b.headers(1, false, ":status=200")
	for left := int(defaultWindow); left > 0; {
		n := min(left, minMaxFrame)
		b.data(1, strings.Repeat("x", n), false)
		left -= n
	}
	c.see()
	b.data(1, "more", false)
	if c.want(); c.c.ready.n != 0 {
		t.Errorf("%d streams are ready", c.c.ready.n)
	}
	c.grow(0, 2)
	c.grow(1, 2)
	c.want(`DATA 1 "mo"`)
}

// Empty DATA frames use no window: a connection may send five thousand at once.
func TestEmptyFramesAreCounted(t *testing.T) {
	r := newRig(t)
	c := r.client()
	c.request(1, "POST", false)
	n := 0
	for ; n < 10_000 && !c.c.closing; n++ {
		c.data(1, "", false)
	}
	if n < 4990 || n > 5010 {
		t.Errorf("%d empty frames were accepted", n)
	}
}
