//go:build e2e

package hostile

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const (
	// strangerBound is how much longer others' slowest answer may take.
	strangerBound = 50 * time.Millisecond
	// strangerMemory is how much memory a stranger may use.
	strangerMemory = 64 * mib
)

// One attacker with sixteen connections cannot stop other users of a real kube-apiserver, nor
// strangers with new tokens.
func TestStrangers(t *testing.T) {
	h := newHarbour(t, newWorld(t), false)
	h.account(t)
	must.Do(t, h.remote.Set(extension.Fault{Kind: extension.Slow, Delay: othersTake, Path: remotePath}))
	user := func(name string) *tls.Config { return h.tls(h.PKI.Client.CA.Issue(pki.Leaf{CommonName: name})) }
	others := &innocents{h.front.Part.PID(), client(user("innocent"), "h2"), h.front.Endpoint.URL + remotePath + "/widget-001"}
	for _, a := range []struct {
		as *tls.Config
		flood
	}{
		// Unproven callers' places are taken by uploads without data.
		{h.tls(nil), holds("uploads that send nothing", "/api/v1/namespaces/x/pods")},
		{h.tls(nil), holds("long-running uploads", "/api/v1/namespaces/x/pods/y/exec")},
		{user("attacker"), holds("uploads to a remote", remotePath)},
		{h.tls(nil), gets("odd paths", "/%61"+strings.Repeat("/", 240_000))},
		{h.tls(nil), gets("dotted paths", remotePath+strings.Repeat("/%2e%2e/a", 26_000))},
		{user("attacker"), gets("long selectors", remotePath+"?labelSelector=a"+strings.Repeat("%2Cb", 60_000))},
		// Each is a new SubjectAccessReview. Sixteen times as many a second use a quarter of a
		// processor in kube-apiserver.
		{user("nobody"), flood{name: "names that nobody asked for", breath: time.Second, step: func(w *wire, n int) (int, error) {
			for i := range 50 {
				if _, err := w.ask("GET", fmt.Sprintf("/apis/mirror.example.com/v1/namespaces/other/secrets/%d-%d", n, i), true); err != nil {
					return i, err
				}
			}
			return 50, nil
		}}},
		// Heads of a few bytes that decode to 234 KB each.
		{user("attacker"), flood{name: "heads that unpack", breath: time.Second / 4, step: func(w *wire, _ int) (int, error) {
			fields := slices.Repeat([]string{"x-large", strings.Repeat("l", 3900)}, 60)
			for i := range 8 {
				if _, err := w.ask("GET", remotePath+"/widget-001", true, fields...); err != nil {
					return i, err
				}
			}
			return 8, nil
		}}},
	} {
		t.Run(a.name, func(t *testing.T) {
			tokens := h.mint(t, 2*windows)
			c := others.compare(t, 1, func(ctx context.Context) {
				var attack sync.WaitGroup
				defer attack.Wait()
				attack.Go(func() { a.run(ctx, host(h.front.Endpoint), a.as, 16, new(sync.Map)) })
				// Requests that need no place, and requests with unused tokens.
				for path, token := range map[string]string{"/readyz": "", remotePath + "/widget-001": tokens[0], "/version": tokens[1]} {
					c := client(h.tls(nil), "h2")
					if reply, err := ask.Do(t.Context(), c, http.MethodGet, h.front.Endpoint.URL+path, ask.Bearer(token), ""); err != nil || reply.Code != http.StatusOK {
						t.Errorf("%s with a new token returned %d: %v", path, reply.Code, err)
					}
					c.CloseIdleConnections()
				}
				tokens = tokens[2:]
			})
			c.held(t, slices.Max, strangerBound, strangerMemory)
		})
	}
}

// gets requests one path again and again.
func gets(name, path string) flood {
	return flood{name: name, breath: time.Second, step: func(w *wire, _ int) (int, error) { _, err := w.ask("GET", path, true); return 1, err }}
}

// holds opens 200 uploads and sends nothing more.
func holds(name, path string) flood {
	begin := func(w *wire) error {
		for range 200 {
			if _, err := w.ask("POST", path, false, "content-length", "100", "content-type", "application/json"); err != nil {
				return err
			}
		}
		return nil
	}
	return flood{name: name, begin: begin, breath: 10 * time.Millisecond, step: func(*wire, int) (int, error) { return 0, nil }}
}
