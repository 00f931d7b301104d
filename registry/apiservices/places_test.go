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
	"k8s.io/apiserver/pkg/storage"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// No user has more than a quarter of the places. A list or watch may keep all objects in memory for a slow reader: each
// 20 MB or 3 MB, with 10,000 objects. An unauthenticated caller counts by address, with any user name.
func TestPlaces(t *testing.T) {
	for verb, most := range map[string]int{"create": 16, "get": 32, "list": 4, "watch": 100} {
		p := &places{}
		asks := func(name, address string) bool {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
			if r.RemoteAddr = address + ":1"; name != "" {
				r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name}))
			}
			_, ok := p.take(r, verb)
			return ok
		}
		for name, address := range map[string]string{"ann": "192.0.2.1", user.Anonymous: "192.0.2.2"} {
			n := 0
			for asks(name, address) {
				n++
			}
			check.Same(t, true, n <= most, "%s: %s holds %d places, more than %d", verb, name, n, most)
		}
		more := [2]bool{asks("ann", "192.0.2.9"), asks("", "192.0.2.2")}
		check.Same(t, [2]bool{}, more, "%s: a user from another address, or an address with another name, has more places", verb)
		others := [2]bool{asks("cid", "192.0.2.1"), asks(user.Anonymous, "192.0.2.9")}
		check.Same(t, [2]bool{true, true}, others, "%s: two other callers have places", verb)
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
	const halved = 2 * maxWrites * 100
	must.Soon(t, time.Minute, "all wait for their bodies", func() bool { return s.places.bodies.Held() >= halved })
	check.Same(t, 0, s.places.writes.Held(), "places of writes held")
	res, body := do(t, http.MethodPost, url+root+"/v1/apiservices", "")
	check.Same(t, true, res.StatusCode != http.StatusTooManyRequests, "another user's: %s", body)
}

// The wait for a body is limited.
func TestBodyThatDoesNotCome(t *testing.T) {
	s := serverOf(t, "http://127.0.0.1:1")
	s.places.bodyTime = 10 * time.Millisecond
	res := must.Get(http.ReadResponse(bufio.NewReader(halves(t, serveFor(t, s))), nil))(t)
	defer res.Body.Close()
	check.Same(t, true, res.StatusCode == http.StatusRequestTimeout && s.places.bodies.Held() == 0, "%s; %d bytes are held", res.Status, s.places.bodies.Held())
}

// Without etcd, requests fail soon, with an error that allows a retry.
func TestEtcdIsAway(t *testing.T) {
	url := serveFor(t, serverOf(t, "http://127.0.0.1:1"))
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		begun := time.Now()
		res, body := do(t, method, url+"/apis/apiregistration.k8s.io/v1/apiservices/v1.a.io", "")
		check.Same(t, true, res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "" && time.Since(begun) <= 10*time.Second, "%s: %d after %s: %s", method, res.StatusCode, time.Since(begun), body)
	}
}

// An answered request gives back what its body took.
func TestBodiesAreReleased(t *testing.T) {
	s, w := serverOf(t, "http://127.0.0.1:1"), httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, root+"/v1/apiservices", strings.NewReader("garbage")))
	check.Same(t, true, w.Code == http.StatusBadRequest && s.places.bodies.Held() == 0, "%d %s; %d bytes are held", w.Code, w.Body, s.places.bodies.Held())
}

// Requests of this process neither take nor need a place.
func TestOwnPlaces(t *testing.T) {
	p := &places{}
	own := httptest.NewRequestWithContext(Own(t.Context()), http.MethodGet, "/", nil)
	for range 2 * maxWatches {
		_, ok := p.take(own, "watch")
		must.Be(t, ok, "refused")
	}
	check.Same(t, 0, p.watches.Held(), "places taken")
}

// A patch costs more than its length: its limit is small, and one that doubles an object with each
// operation is refused before it uses all memory.
func TestCostlyPatches(t *testing.T) {
	_, _, c := serveEtcd(t)
	ready(t, c)
	must.Get(c.Create(t.Context(), object("v1.a.io", map[string]string{"x": strings.Repeat("x", 60)}), metav1.CreateOptions{}))(t)
	_, err := c.Patch(t.Context(), "v1.a.io", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"`+strings.Repeat("x", maxPatch)+`"}}}`), metav1.PatchOptions{})
	fails(t, apierrors.IsRequestEntityTooLargeError, "limit is 524288", err, "long")
	patch := `[{"op":"copy","from":"/metadata/labels","path":"/metadata/b"}`
	for i := range 17 { // 60 bytes become 8 MiB
		patch += `,{"op":"copy","from":"/metadata/b","path":"/metadata/c"},{"op":"move","from":"/metadata/c","path":"/metadata/b/c` + strconv.Itoa(i) + `"}`
	}
	_, err = c.Patch(t.Context(), "v1.a.io", types.JSONPatchType, []byte(patch+"]"), metav1.PatchOptions{})
	refused, ok := errors.AsType[*apierrors.StatusError](err)
	check.Same(t, true, ok && refused.ErrStatus.Code == http.StatusUnprocessableEntity, "copies: %v", err)
}

// A body with a declared length above the limit is refused as too large, and takes no more places
// than the largest that is allowed.
func TestDeclaredSize(t *testing.T) {
	for _, declared := range []int64{-1, maxBody + 1, 1 << 40} {
		p := &places{}
		r := httptest.NewRequest(http.MethodPost, "/", io.LimitReader(zeros{}, maxBody+1))
		r.ContentLength = declared
		_, err := p.body(httptest.NewRecorder(), r)
		check.Same(t, true, apierrors.IsRequestEntityTooLargeError(err) && p.bodies.Held() == 0, "%d bytes declared: %v, %d held", declared, err, p.bodies.Held())
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A request for a future revision gets no Retry-After, because client-go would obey it ten times.
func TestTooLarge(t *testing.T) {
	err := newStore().known(t.Context(), "18446744073709551615")
	after, told := apierrors.SuggestsClientDelay(err)
	check.Same(t, true, !told && storage.IsTooLargeResourceVersion(err), "Retry-After: %d s: %v", after, err)
}
