package apiservices

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// asks takes a place for a user's request, if one is free.
func asks(t *testing.T, p *places, name, verb string) bool {
	t.Helper()
	_, ok := p.take(httptest.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: name}), http.MethodPost, "/", nil), verb)
	return ok
}

// No user has all places.
func TestPlaces(t *testing.T) {
	for _, verb := range []string{"create", "get", "list", "watch"} {
		p := newPlaces()
		for _, slow := range []string{"ann", "bob"} {
			for asks(t, p, slow, verb) {
			}
		}
		if !asks(t, p, "cid", verb) {
			t.Errorf("%s: two users hold all places", verb)
		}
	}
}

// The limit of a patch is small, because a patch costs more than its length.
func TestLongPatch(t *testing.T) {
	_, _, c := serveEtcd(t)
	ready(t, c)
	_, err := c.Patch(t.Context(), "v1.a.io", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"`+strings.Repeat("x", maxPatch)+`"}}}`), metav1.PatchOptions{})
	if !apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), "limit is 524288") {
		t.Errorf("patch: %v", err)
	}
}

// halves sends the head of a POST and half of its body, as ann.
func halves(t *testing.T, url string) net.Conn {
	t.Helper()
	c := must.Get(new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://")))(t)
	t.Cleanup(func() { _ = c.Close() })
	must.Get(io.WriteString(c, "POST "+root+"/v1/apiservices HTTP/1.1\r\nHost: x\r\nUser: ann\r\nContent-Length: 99\r\n\r\n{"))(t)
	return c
}

// Slow bodies of one user do not delay the requests of another.
func TestSlowBodies(t *testing.T) {
	s := serverOf(t, "http://127.0.0.1:1")
	url := serveFor(t, s)
	for range 2 * maxWrites {
		halves(t, url)
	}
	for s.places.bodies.Held() < 2*maxWrites*100 {
		<-time.After(time.Millisecond)
	}
	check.Same(t, 0, s.places.writes.Held(), "places of writes held")
	if res, body := do(t, http.MethodPost, url+root+"/v1/apiservices", ""); res.StatusCode == http.StatusTooManyRequests {
		t.Errorf("another user's: %s", body)
	}
}

// The wait for a body is limited.
func TestBodyThatDoesNotCome(t *testing.T) {
	s := serverOf(t, "http://127.0.0.1:1")
	s.places.bodyTime = 10 * time.Millisecond
	res := must.Get(http.ReadResponse(bufio.NewReader(halves(t, serveFor(t, s))), nil))(t)
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestTimeout || s.places.bodies.Held() != 0 {
		t.Errorf("%s; %d bytes are held", res.Status, s.places.bodies.Held())
	}
}

// An answered request gives back what its body took.
func TestBodiesAreReleased(t *testing.T) {
	s, w := serverOf(t, "http://127.0.0.1:1"), httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, root+"/v1/apiservices", strings.NewReader("garbage")))
	if w.Code != http.StatusBadRequest || s.places.bodies.Held() != 0 {
		t.Errorf("%d %s; %d bytes are held", w.Code, w.Body, s.places.bodies.Held())
	}
}

// Requests of this process neither take nor need a place.
func TestOwnPlaces(t *testing.T) {
	p := newPlaces()
	own := httptest.NewRequestWithContext(Own(t.Context()), http.MethodGet, "/", nil)
	for range 2 * maxWatches {
		if _, ok := p.take(own, "watch"); !ok {
			t.Fatal("refused")
		}
	}
	check.Same(t, 0, p.watches.Held(), "places taken")
}

// A list or watch may keep all objects in memory for a slow reader.
func TestPlacesOfReaders(t *testing.T) {
	for verb, most := range map[string]int{"list": 8, "watch": 100} { // each keeps 20 MB or 3 MB, with 10,000 objects
		p, n := newPlaces(), 0
		for asks(t, p, "ann", verb) {
			n++
		}
		if n > most {
			t.Errorf("%s: one user holds %d places, more than %d", verb, n, most)
		}
	}
}

// A patch that doubles an object with each operation is refused before it uses all memory.
func TestCopyingPatch(t *testing.T) {
	_, _, c := serveEtcd(t)
	ready(t, c)
	must.Get(c.Create(t.Context(), object("v1.a.io", map[string]string{"x": strings.Repeat("x", 60)}), metav1.CreateOptions{}))(t)
	patch := `[{"op":"copy","from":"/metadata/labels","path":"/metadata/b"}`
	for i := range 17 { // 60 bytes become 8 MiB
		patch += `,{"op":"copy","from":"/metadata/b","path":"/metadata/c"},{"op":"move","from":"/metadata/c","path":"/metadata/b/c` + strconv.Itoa(i) + `"}`
	}
	_, err := c.Patch(t.Context(), "v1.a.io", types.JSONPatchType, []byte(patch+"]"), metav1.PatchOptions{})
	if refused := (*apierrors.StatusError)(nil); !errors.As(err, &refused) || refused.ErrStatus.Code != http.StatusUnprocessableEntity {
		t.Errorf("patch: %v", err)
	}
}

// A body with a declared length above the limit is refused as too large, and takes no more places
// than the largest that is allowed.
func TestDeclaredSize(t *testing.T) {
	for _, declared := range []int64{-1, maxBody + 1, 1 << 40} {
		p := newPlaces()
		r := httptest.NewRequest(http.MethodPost, "/", io.LimitReader(zeros{}, maxBody+1))
		r.ContentLength = declared
		if _, err := p.body(httptest.NewRecorder(), r); !apierrors.IsRequestEntityTooLargeError(err) || p.bodies.Held() != 0 {
			t.Errorf("%d bytes declared: %v, %d held", declared, err, p.bodies.Held())
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// An unauthenticated caller counts by address, with any user name.
func TestSourceOf(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "192.0.2.1:1"
	stranger := bound.Stranger(r.RemoteAddr)
	for name, want := range map[string]bound.Source{"": stranger, user.Anonymous: stranger, "ann": {User: "ann"}} {
		r := r
		if name != "" {
			r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name}))
		}
		if got := sourceOf(r); got != want {
			t.Errorf("%q: %+v, want %+v", name, got, want)
		}
	}
}

// A request for a future revision gets no Retry-After, because client-go would obey it ten times.
func TestTooLarge(t *testing.T) {
	if after, told := apierrors.SuggestsClientDelay(tooLarge(2, 1)); told {
		t.Errorf("Retry-After: %d s", after)
	}
}
