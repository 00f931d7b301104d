package engine

import (
	"testing"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// A drain does not end a watch within a DATA frame, even if the received part ends with a newline.
func TestDrainEndsBetweenFrames(t *testing.T) {
	r := newRig(t)
	first := r.client()
	first.get(1)
	b := r.backend(0)
	b.respond(1, "other")
	c := r.client()
	r.plan.LongRunning = true
	c.get(1) // 3 on the backend's connection
	b.headers(3, false, ":status=200")
	frame := wire.FrameHeader{Length: 10, Type: http2.FrameData, StreamID: 3}.Append(nil)
	b.to.WriteString(string(frame) + "{}\n")
	b.flush()
	c.see()
	r.drain(0)
	c.see()
	r.tick(eventGap)
	c.want()
	b.to.WriteString(`{"a":0}`)
	b.flush()
	r.tick(2 * eventGap)
	c.want(`DATA 1 "{\"a\":0}"`, `DATA 1 "" END`)
}
