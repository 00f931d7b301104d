package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// The head of an answer is counted from its first byte until the client has the answer: also of one that never
// ends, and while its body is awaited, over any protocols but for those that frames go by.
func TestHeadsOfAnswersAreHeld(t *testing.T) {
	const size = 200 * 900
	head := proportion.Lines(200, "X-%d", strings.Repeat("v", 900))
	for _, http1 := range []bool{true, false} {
		memory := hold.New(1 << 30)
		stay := make(chan struct{})
		remote := func(w http.ResponseWriter, r *http.Request) {
			for line := range strings.SplitSeq(strings.TrimSuffix(head, "\r\n"), "\r\n") {
				name, value, _ := strings.Cut(line, ": ")
				w.Header().Set(name, value)
			}
			_ = http.NewResponseController(w).Flush()
			<-stay
		}
		if http1 {
			remote = hijacked(func(c io.ReadWriter, r *http.Request) {
				status := map[string]string{"unfinished": "200 OK", "interim": "103 Early Hints", "whole": "200 OK"}[r.URL.RawQuery]
				fmt.Fprintf(c, "HTTP/1.1 %s\r\n%s", status, head)
				if r.URL.RawQuery != "unfinished" {
					_, _ = io.WriteString(c, "\r\n")
				}
				<-stay
			})
		}
		w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: remote, pools: backend.Config{Memory: memory}})
		for _, kind := range []string{"whole", "interim", "unfinished"} {
			if !http1 && kind != "whole" {
				continue
			}
			conn := w.dial(t, w.front, nil)
			must.Get(fmt.Fprintf(conn, "GET %s/widgets?%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-bob\r\n\r\n", remoteGV, kind))(t)
			must.Soon(t, 10*time.Second, fmt.Sprintf("the head is held: %s, HTTP/1.1 %v", kind, http1), func() bool { return memory.Held() > size })
			conn.Close()
			must.Soon(t, 10*time.Second, fmt.Sprintf("the head is not held any more: %s, HTTP/1.1 %v", kind, http1), func() bool { return memory.Held() == 0 })
		}
		close(stay)
	}
}
