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

func TestForward(t *testing.T) { onDrivers(t, testForward) }

func testForward(t *testing.T, driver string) {
	const path = "/apis/a.b/v1?q=%2F&x"
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Secret, X-T")
		w.Header().Set("X-Secret", "1")
		w.Header().Set("X-Got", fmt.Sprint(r.Proto, r.Header["X-A"], r.Header["X-Strip"], r.Header["X-Remote-User"], r.RequestURI))
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-T", "1")
	}), func(_ *Head, p *Plan) {
		p.Remove = func(name string) bool { return name == "x-strip" }
		p.RemoveResponse = func(name string) bool { return name == "x-secret" }
		p.Set = append(p.Set, field("x-remote-user", "alice"))
	})
	for range 3 {
		res := s.do("GET", path, nil, "X-A", "1", "X-A", "2", "X-Strip", "no", "X-Remote-User", "mallory")
		s.reads(res, "body")
		check.Same(t, 2, res.ProtoMajor, "version of HTTP")
		check.Same(t, "HTTP/2.0[1 2] [] [alice]"+path, res.Header.Get("X-Got"), "what the backend saw")
		if res.Header["X-Secret"] != nil || res.Trailer["X-Secret"] != nil || res.Trailer.Get("X-T") != "1" {
			t.Errorf("got %v, trailers %v", res.Header, res.Trailer)
		}
		o := <-s.ended
		if o.Status != 200 || o.Sent != 4 || o.Reason != ReasonNone || o.Endpoint != s.ep || o.Duration <= 0 || o.Wait <= 0 {
			t.Errorf("outcome %+v", o)
		}
	}
}

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
	check.Same(t, digest(body()), digest(s.do("PUT", "/echo", body()).Body), "the body that came back")
}

// httpEcho answers with the request's body.
func httpEcho() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-T")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-T", "end")
	}
}
