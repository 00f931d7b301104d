package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// In a bubble the delay is exact, and nothing else takes time.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, in := net.Pipe()
		out, far := net.Pipe()
		const by = 25 * time.Millisecond
		r := &Relay{}
		r.Delay(by)
		go r.carry(out, in)
		began := time.Now()
		for i := range byte(5) {
			must.Get(near.Write([]byte{i, i}))(t)
			time.Sleep(time.Millisecond)
		}
		near.Close()
		for i := range byte(5) {
			b := make([]byte, 2)
			if _, err := io.ReadFull(far, b); err != nil || !bytes.Equal(b, []byte{i, i}) {
				t.Fatalf("%v, %v: want %d", b, err, i)
			}
			if took, want := time.Since(began), by+time.Duration(i)*time.Millisecond; took != want {
				t.Errorf("piece %d came after %v, want %v", i, took, want)
			}
		}
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
	})
}
