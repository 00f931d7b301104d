package engine

import (
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
)

// greedyClient has sent so much unread data that its connection holds more than its share.
func (r *rig) greedyClient() *peer {
	r.e.Memory = hold.New(4 << 20)
	c := r.client()
	for id := uint32(1); id <= 15; id += 2 { // 2 MiB
		c.request(id, "POST", false)
		c.upload(id, int(r.e.lim.streamWindow))
		r.e.report(1)
	}
	return c
}

// A connection that holds more than its share gets no credit and no new stream until its bodies
// have been forwarded. Other connections are not affected.
func TestGreedyConnectionWaits(t *testing.T) {
	r := newRig(t)
	stuck := r.ep
	c := r.greedyClient()
	if c.c.queued > 2<<20 || c.c.recv > r.e.lim.clientWindow/2 || !c.c.greedy() {
		t.Fatalf("%d bytes are held, and %d more may come", c.c.queued, c.c.recv)
	}
	c.see()
	c.get(17)
	c.want("RST 17 REFUSED_STREAM")
	r.ep = r.endpoint("healthy")
	other := r.client()
	other.request(1, "POST", false)
	other.data(1, "hello", true)
	b := r.backend(1)
	b.respond(b.c.maxID, "hi")
	other.want("HEADERS 1 :status=200", `DATA 1 "hi" END`)
	b = r.backend(0)
	b.grow(0, 4<<20)
	for id := uint32(1); id <= 15; id += 2 {
		b.grow(id, 4<<20)
	}
	r.e.report(1)
	r.tick(TickEvery)
	if c.c.queued != 0 || c.c.recv < r.e.lim.clientWindow/2 || c.c.greedy() {
		t.Errorf("%d bytes are held, and %d may come", c.c.queued, c.c.recv)
	}
	c.get(19)
	r.backend(1).respond(r.backend(1).c.maxID, "hi")
	c.wantPart(`DATA 19 "hi" END`)
	r.e.lose(c.c, errRefused)
	r.e.lose(other.c, errRefused)
	r.retire(stuck, 0)
	r.clean()
}

// A client that exceeds its connection's window loses the connection, even if its streams' windows
// would allow the data.
func TestConnectionWindowIsEnforced(t *testing.T) {
	r := newRig(t)
	c := r.greedyClient()
	c.get(17)
	c.see() // the stream is refused, so its DATA counts only for the connection
	for full := strings.Repeat("x", minMaxFrame); c.c.recv >= minMaxFrame; {
		c.data(17, full, false)
		if got := c.see(); len(got) > 0 {
			t.Fatalf("within the window: %q", got)
		}
	}
	c.data(17, strings.Repeat("x", int(c.c.recv)+1), false)
	c.want("GOAWAY 17 FLOW_CONTROL_ERROR")
}

// The body that is kept for a retry counts against its client until the response begins.
func TestAnsweredRequestIsNotHeld(t *testing.T) {
	r := newRig(t)
	r.plan.Retries = 1
	c := r.client()
	c.request(1, "POST", false)
	c.upload(1, 2*chunkSize)
	b := r.backend(0)
	if c.c.queued < 2*chunkSize {
		t.Fatalf("%d bytes are held", c.c.queued)
	}
	b.send(1, false, ":status=200")
	if c.c.queued != 0 {
		t.Errorf("%d bytes are held although nothing can be sent again", c.c.queued)
	}
}

// While many connections hold little each, and too much together, a turn does not look at all of
// them. A connection that begins to hold much is still found at once, or at the next tick.
func TestManySmallHolders(t *testing.T) {
	r := newRig(t)
	c, other := r.client(), r.client()
	r.e.Memory.Add(r.e.Memory.Room() * 5) // by other shards
	r.e.Due()
	other.c.queued = 2 * int(hold.Least) // found only by a look, because no more is held
	r.e.Due()
	if other.c.cut {
		t.Error("a turn looked again, although no more was held")
	}
	r.heldDial = true
	c.request(1, "POST", false)
	c.upload(1, 3*int(hold.Least)/2)
	r.e.Due()
	if !other.c.cut || !c.c.cut {
		t.Errorf("when more is held, the large holders are cut: %v, %v", other.c.cut, c.c.cut)
	}
	small, late := r.client(), r.client()
	late.c.queued = 2 * int(hold.Least)
	r.tick(TickEvery)
	if !late.c.cut || small.c.cut {
		t.Errorf("at a tick, only the large holder is cut: %v, %v", late.c.cut, small.c.cut)
	}
}
