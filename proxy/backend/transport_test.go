package backend

import (
	"errors"
	"io"
	"net/http"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		s := newServer(t, proto, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			for _, name := range []string{"User-Agent", "Accept-Encoding"} {
				if v, ok := r.Header[name]; ok {
					t.Errorf("%s was invented: %q", name, v)
				}
			}
			w.Header().Set("Content-Encoding", "gzip") // it is not, and nobody must look
			w.Header().Set("Location", "https://elsewhere/")
			w.WriteHeader(http.StatusTemporaryRedirect)
			_, _ = w.Write(append([]byte(r.Method+" "+r.Proto+" "), b...))
		})
		f := newFixture(t, nil)
		e := f.set(healthy(s.address))
		for range 3 {
			status, text, err := f.do(e, http.MethodPost, "body")
			if err != nil {
				t.Fatal(err)
			}
			want := "POST HTTP/1.1 body"
			if status != http.StatusTemporaryRedirect || text != want {
				t.Errorf("got %d %q, want %q", status, text, want)
			}
		}
		if n := s.conns.Load(); n != 1 {
			t.Errorf("three requests made %d connections, want 1", n)
		}
	})
}

func TestNoEndpoint(t *testing.T) {
	f := newFixture(t, nil)
	_, _, err := f.do(f.set(), http.MethodGet, "")
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}
