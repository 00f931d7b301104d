//go:build e2e

package differential

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// part is what a server does for one request.
type part struct {
	http.ResponseWriter
	r          *http.Request
	inject     func(head, data bool, write func(*http2.Framer, uint32))
	end        func(reset bool)
	raw        net.Conn // HTTP/1.1 below net/http. Nil: not needed
	head, data bool     // has been sent
	sent       int      // bytes of the body
	got        []byte   // of the request's
	err        error    // its end
}

// perform wraps the server's handler: requests of scripts, and no others, have steps.
func (s *stage) perform(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		words := strings.Split(r.URL.Path, "/") // /apis/group/version/things/request/steps
		if len(words) < 7 {
			next.ServeHTTP(w, r)
			return
		}
		tries := strings.Split(words[6], "~")
		steps := strings.Split(tries[min(s.note(words[5], "came"), len(tries)-1)], ".")
		p := &part{ResponseWriter: w, r: r}
		p.inject, p.end = extension.Below(w, r)
		for _, step := range steps {
			if n, _ := strconv.Atoi(step[1:]); step != "G" {
				p.do(step, step[:1], n)
			} else if within(time.Second, r.Context().Done(), nil) {
				s.note(words[5], "gone")
			}
		}
		if steps[len(steps)-1] != "e" {
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
	})
}

// do does a step.
func (p *part) do(step, what string, n int) {
	switch what {
	case "d":
		p.write(bytes.Repeat([]byte("abcdefghijklmnopqrstuvw"), n/23+2)[p.sent%23:][:n])
		p.sent += n
	case "m":
		p.write(fmt.Appendf(nil, "[%d %08x %v]", len(p.got), crc32.ChecksumIEEE(p.got), p.err != nil))
	case "B", "b":
		var b []byte
		b, p.err = io.ReadAll(io.LimitReader(p.r.Body, map[string]int64{"B": 1 << 30, "b": int64(n)}[what]))
		p.got = append(p.got, b...)
	case "p":
		within(time.Duration(n)*time.Millisecond, nil, nil)
	case "t":
		p.Header().Set(http.TrailerPrefix+"X-Trailer", "1")
	case "g", "x", "r":
		last := map[string]uint32{"x": 2}[what]
		p.inject(p.head, p.data, func(fr *http2.Framer, id uint32) {
			if what == "r" {
				_ = fr.WriteRSTStream(id, http2.ErrCode(n))
			} else {
				_ = fr.WriteGoAway(max(id, last)-last, http2.ErrCode(n), nil)
			}
		})
		if p.Header().Set("Connection", "close"); what == "r" {
			p.end(true)
		}
	case "e", "c":
		if what == "c" || p.raw != nil {
			p.end(false)
		}
	default:
		code, _ := strconv.Atoi(step[:3])
		p.begin(code, step[3:]+" ")
	}
}

// begin writes a head. What net/http would not write goes below it.
func (p *part) begin(code int, form string) {
	h, n, http1 := p.Header(), strings.Trim(form, "lLvoz "), p.r.ProtoMajor == 1
	h.Set("X-Script", "1")
	switch {
	case http1 && (form[0] == 'o' || form[0] == 'L' || code == http.StatusSwitchingProtocols):
		p.raw, _, _ = http.NewResponseController(p.ResponseWriter).Hijack()
		more := map[byte]string{'L': "Content-Length: " + n, 'o': "Connection: close", ' ': "Connection: Upgrade\r\nUpgrade: scripts"}[form[0]]
		fmt.Fprintf(p.raw, "HTTP/1.%d %d Said\r\nX-Script: 1\r\n%s\r\n\r\n", map[byte]int{'o': 1}[form[0]]^1, code, more)
		return
	case form[0] == 'l' || form[0] == 'L':
		h.Set("Content-Length", n)
	case form[0] == 'v':
		h.Set("X-Big", strings.Repeat("v", 3000))
	case form[0] == 'z' && http1:
		h.Set("Transfer-Encoding", "identity")
	}
	p.WriteHeader(code)
	p.flush(nil, code >= 200, false)
}

func (p *part) flush(err error, head, data bool) {
	if err == nil && http.NewResponseController(p.ResponseWriter).Flush() == nil {
		p.head, p.data = p.head || head, p.data || data
	}
}

// write writes a piece of the body, also more than was declared.
func (p *part) write(b []byte) {
	if p.raw != nil {
		_, _ = p.raw.Write(b)
	} else if _, err := p.Write(b); errors.Is(err, http.ErrContentLength) {
		p.inject(p.head, p.data, func(fr *http2.Framer, id uint32) { _ = fr.WriteData(id, false, b[:min(len(b), 1<<10)]) })
	} else {
		p.flush(err, true, len(b) > 0)
	}
}
