package h2

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// bodySize is the size of TestLargeBodies' body. make interop runs it with a gigabyte.
var bodySize = flag.Int64("body", 16<<20, "bytes of TestLargeBodies' body")

// A large body goes to the backend and back at the same time, byte for byte.
func TestLargeBodies(t *testing.T) { onDrivers(t, testLargeBodies) }

func testLargeBodies(t *testing.T, driver string) {
	s := newStand(t, driver, httpEcho(), nil)
	s.client.Timeout = 0
	body := func() io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), *bodySize) }
	digest := func(r io.Reader) string {
		h := sha256.New()
		n, err := io.Copy(h, r)
		return fmt.Sprintf("%d %v %x", n, err, h.Sum(nil))
	}
	want := digest(body())
	check.Same(t, want, digest(s.do("PUT", "/echo", body()).Body), "the body that came back to a client")
	check.Same(t, want, digest(s.guest("PUT", "/echo", body()).Body), "the body that came back to a guest")
}

// httpEcho answers with the request's body.
func httpEcho() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-T")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-T", "end")
	}
}

// Uploads with trailers, to a backend that answers at once, do not end the connection that others
// share: for net/http, HEADERS on a stream that it has reset are an error of the connection.
func TestTrailersEndNoConnection(t *testing.T) {
	b := newHolding()
	s := newStand(t, "loop", b, nil, func(c *Config) { c.Shards = 1 })
	victim := s.begun(s.do("GET", "/hold", nil))
	c := s.greet()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	for range 300 {
		id := c.next
		must.Do(t, c.upload("/"))
		for over := false; !over; { // answered, or reset
			switch f := must.Get(c.fr.ReadFrame())(t).(type) {
			case *http2.RSTStreamFrame:
				over = f.StreamID == id
			case *http2.HeadersFrame:
				over = f.StreamID == id && f.StreamEnded()
			case *http2.DataFrame:
				over = f.StreamID == id && f.StreamEnded()
			}
		}
	}
	close(b.release)
	s.reads(victim, "fine")
}

// upload sends a request with a body and trailers at once.
func (l *leanClient) upload(path string) error {
	id := l.next
	err := l.open("POST", path, false)
	for range 3 {
		err = errors.Join(err, l.fr.WriteData(id, false, make([]byte, 16000)))
	}
	l.block.Reset()
	_ = l.enc.WriteField(field("x-sum", "1"))
	err = errors.Join(err, l.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: l.block.Bytes(), EndStream: true, EndHeaders: true}))
	return errors.Join(err, l.w.Flush())
}
