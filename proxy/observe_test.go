package proxy

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Health hears how fast an endpoint answers over both protocols: of requests that were answered,
// and not of those whose time says nothing.
func TestAnswersAreObserved(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	w := newWorld(t, worldConfig{
		remote: func(_ http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/cut") {
				panic(http.ErrAbortHandler)
			}
		},
		observe: func(apiService, address string, took time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, fmt.Sprint(apiService, " ", address, " ", took > 0))
		},
	})
	one := "v1.remote.example.com " + w.remote.Listener.Addr().String() + " true"
	everyWay(t, func(t *testing.T, proto string) {
		for _, tc := range []struct {
			target string
			want   []string
		}{
			{remoteGV + "/widgets", []string{one}},
			{remoteGV + "/widgets?watch=true", nil},
			{remoteGV + "/widgets/cut", nil},
			{"/api/v1/pods", nil}, // apiservers are not compared
			{remoteGV + "/widgets/last", []string{one}},
		} {
			mu.Lock()
			heard = nil
			mu.Unlock()
			w.get(t, proto, tc.target)
			w.settled(t)
			mu.Lock()
			if diff := cmp.Diff(tc.want, heard); diff != "" {
				t.Errorf("%s: -want +heard:\n%s", tc.target, diff)
			}
			mu.Unlock()
		}
	})
}

// settled waits until no request is under way: the engine does its sums once the last byte is on
// its way.
func (w *world) settled(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); w.proxy.UnderWay() > 0; {
		if time.Now().After(deadline) {
			t.Fatal("a request does not end")
		}
		runtime.Gosched()
	}
}
