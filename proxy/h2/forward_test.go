package h2

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
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
