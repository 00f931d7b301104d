package h2

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"net/http"
	"testing"
)

// bodySize is the size of the bodies of TestLargeBodies. A run of go test -run LargeBodies
// ./proxy/h2 -body 1073741824 takes a minute.
var bodySize = flag.Int64("body", 64<<20/slower, "bytes of TestLargeBodies' bodies")

// patternReader returns n bytes that repeat with a prime period, so that lost, doubled or swapped
// bytes are detected.
type patternReader struct{ at, n int64 }

var periodic = pattern(0, 65521)

func (r *patternReader) Read(p []byte) (int, error) {
	if r.at == r.n {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), r.n-r.at)], periodic[r.at%int64(len(periodic)):])
	r.at += int64(n)
	return n, nil
}

// compare reads all of got and compares it with r.
func (r *patternReader) compare(got io.Reader) error {
	a, b := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(got, a)
		k, _ := io.ReadFull(r, b)
		if n != k || !bytes.Equal(a[:n], b[:k]) {
			return errors.New("the body was changed or truncated")
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func TestLargeBodies(t *testing.T) { onDrivers(t, testLargeBodies) }

func testLargeBodies(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			_, _ = io.Copy(w, &patternReader{n: *bodySize})
			return
		}
		if err := (&patternReader{n: *bodySize}).compare(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}), nil)
	s.client.Timeout = 0
	if err := (&patternReader{n: *bodySize}).compare(s.do("GET", "/", nil).Body); err != nil {
		t.Error(err)
	}
	if res := s.do("PUT", "/", io.NopCloser(&patternReader{n: *bodySize})); res.StatusCode != http.StatusOK {
		t.Errorf("upload: %d %s", res.StatusCode, s.read(res))
	}
}
