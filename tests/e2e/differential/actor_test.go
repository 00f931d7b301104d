//go:build e2e

package differential

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// turn is a request of an actor's, and what became of it.
type turn struct {
	word, method   string            // that began it
	facts          map[string]string // :: name → what came: status, interim, …
	body           []byte
	declared, sent int // bytes of the request's body; not declared: -1

	on         *link
	id         uint32        // of the stream; 0: HTTP/1.1
	chunked    bool          // its body has no declared length
	first, all chan struct{} // closed by the answer's first head, and by its end
}

// head takes a head. Only net/http's reader knows whether the connection ends after it.
func (q *turn) head(status int, h http.Header, after string) {
	if len(q.facts) == 0 {
		close(q.first)
	}
	if q.facts["status"] != "" {
		q.facts["trailer"] = h.Get("X-Trailer")
	} else if status < 200 && status != http.StatusSwitchingProtocols {
		q.facts["interim"] += fmt.Sprint(" ", status)
	} else if q.facts["status"], q.facts["after"] = strconv.Itoa(status), after; h.Get("X-Script") == "" {
		q.facts["own"] = "yes" // the server's answers have that field
	} else {
		q.facts["own"], q.facts["length"], q.facts["field"] = "no", h.Get("Content-Length"), strconv.Itoa(len(h.Get("X-Big")))
	}
}

func (q *turn) ends(err error) {
	if q.facts["end"] != "" {
		return
	}
	end := "closed"
	if reset, ok := errors.AsType[http2.StreamError](err); ok {
		end = "reset_" + reset.Code.String()
	}
	for is, name := range map[error]string{nil: "clean", os.ErrDeadlineExceeded: "timeout", net.ErrClosed: "gave_up"} {
		if errors.Is(err, is) {
			end = name
		}
	}
	q.facts["end"] = end
	close(q.all)
}

type link struct {
	*tls.Conn
	held    sync.Mutex // while nothing is read
	turns   chan *turn // of HTTP/1.1, whose answers have an order
	fr      *http2.Framer
	mu      sync.Mutex // guards the fields below, HTTP/2's of turns, and writes of frames
	streams map[uint32]*turn
	err     error // why it has ended
}

// Read waits while it is held.
func (l *link) Read(b []byte) (int, error) {
	l.held.Lock()
	l.held.Unlock() //nolint:staticcheck // it waits
	return l.Conn.Read(b)
}

func dial(target string, c *tls.Config) *link {
	l := &link{Conn: try.Get(tls.Dial("tcp", target, c)), turns: make(chan *turn, 16), streams: map[uint32]*turn{}}
	_ = l.NetConn().(*net.TCPConn).SetReadBuffer(64 << 10) // who reads slowly is noticed
	_ = l.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if l.ConnectionState().NegotiatedProtocol == "h2" {
		l.fr = http2.NewFramer(l.Conn, l)
		l.fr.ReadMetaHeaders, l.fr.AllowIllegalWrites = hpack.NewDecoder(4096, nil), true
		_, err := io.WriteString(l.Conn, http2.ClientPreface)
		try.Do(errors.Join(err, l.fr.WriteSettings()))
		go l.frames() // ends with the connection
		return l
	}
	go func() { // ends when turns is closed
		answers := bufio.NewReader(l)
		for q := range l.turns {
			q.ends(q.http1(answers))
		}
	}()
	return l
}

// http1 reads an answer of HTTP/1.1.
func (q *turn) http1(answers *bufio.Reader) error {
	for {
		res, err := http.ReadResponse(answers, &http.Request{Method: q.method})
		if err != nil {
			return err
		}
		q.head(res.StatusCode, res.Header, map[bool]string{true: "close"}[res.Close])
		if res.StatusCode == http.StatusSwitchingProtocols {
			res.Body = io.NopCloser(answers)
		}
		if q.facts["status"] != "" {
			q.body, err = io.ReadAll(res.Body)
			q.facts["trailer"] = res.Trailer.Get("X-Trailer")
			return err
		}
	}
}

func (l *link) frames() {
	for l.err == nil {
		f, err := l.fr.ReadFrame()
		l.mu.Lock()
		if l.err = err; err == nil {
			l.take(f, l.streams[f.Header().StreamID])
		}
		for _, q := range l.streams {
			if err != nil {
				q.ends(err)
			}
		}
		l.mu.Unlock()
	}
}

func (l *link) take(f http2.Frame, q *turn) {
	ended := false
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			_ = l.fr.WriteSettingsAck()
		}
	case *http2.DataFrame:
		if q.body, ended = append(q.body, f.Data()...), f.StreamEnded(); f.Length > 0 {
			_ = errors.Join(l.fr.WriteWindowUpdate(0, f.Length), l.fr.WriteWindowUpdate(f.StreamID, f.Length))
		}
	case *http2.RSTStreamFrame:
		q.ends(http2.StreamError{Code: f.ErrCode})
	case *http2.MetaHeadersFrame:
		h := http.Header{}
		for _, field := range f.RegularFields() {
			h.Add(field.Name, field.Value)
		}
		status, _ := strconv.Atoi(f.PseudoValue("status"))
		q.head(status, h, "")
		ended = f.StreamEnded()
	}
	if ended {
		q.ends(nil)
	}
}

// actor plays the client's part of a script.
type actor struct {
	dial     func() *link
	prefix   string   // of paths
	fields   []string // of each head: name, value, …
	patience time.Duration

	links []*link
	turns []*turn
}

func (a *actor) play(words []string) (turns []*turn, err error) {
	defer try.Catch(&err)
	a.links = []*link{a.dial()}
	for _, word := range words {
		l, request := a.links[len(a.links)-1], slices.IndexFunc(a.turns, func(q *turn) bool { return q.word[:2] == word[:min(len(word), 2)] })
		if strings.Contains(word, "?") {
			a.begin(word, l)
		} else if n, _ := strconv.Atoi(strings.TrimLeft(word[1:], ":b")); request >= 0 {
			a.turns[request].do(word[2], bytes.Repeat([]byte("0123456789"), n/10+1)[:n])
		} else if word == "n" {
			a.links = append(a.links, a.dial())
		} else {
			l.do(word[0], time.Duration(n)*time.Millisecond)
		}
	}
	for _, l := range a.links {
		_ = l.SetReadDeadline(time.Now().Add(a.patience))
		close(l.turns)
		defer l.Close()
	}
	for _, q := range a.turns {
		<-q.all
	}
	return a.turns, nil
}

// within waits for either channel, or d. It reports whether it was a channel.
func within(d time.Duration, a, b <-chan struct{}) bool {
	select {
	case <-a:
	case <-b:
	case <-time.After(d):
		return false
	}
	return true
}

func (l *link) do(what byte, d time.Duration) {
	switch tcp := l.NetConn().(*net.TCPConn); what {
	case 'p':
		within(d, nil, nil)
	case 's':
		l.held.Lock()
		time.AfterFunc(d, l.held.Unlock)
	case 'f':
		_ = errors.Join(l.CloseWrite(), tcp.CloseWrite())
	case 'R':
		_ = errors.Join(tcp.SetLinger(0), tcp.Close())
	case 'c':
		l.Close()
	}
}

func (q *turn) do(what byte, b []byte) {
	q.sent += len(b)
	switch {
	case what == 'C':
		within(300*time.Millisecond, q.first, q.all)
	case what == 'W':
		within(time.Second, q.all, nil)
	case q.id > 0:
		q.on.mu.Lock()
		defer q.on.mu.Unlock()
		if what == 'r' && q.facts["end"] == "" {
			_ = q.on.fr.WriteRSTStream(q.id, http2.ErrCodeCancel)
			q.ends(net.ErrClosed)
		} else if (q.chunked || q.declared >= 0) && q.facts["end"] == "" {
			_ = q.on.fr.WriteData(q.id, what == 'e', b) // no script sends more than the first credit
		}
	case q.chunked && (what == 'e' || len(b) > 0):
		fmt.Fprintf(q.on, "%x\r\n%s\r\n", len(b), b)
	default:
		_, _ = q.on.Write(b)
	}
}

func (a *actor) begin(word string, l *link) {
	head, steps, _ := strings.Cut(word[2:], "?")
	options := strings.Split(head, "+")
	q := &turn{word: word, method: options[0], facts: map[string]string{}, declared: -1, on: l, first: make(chan struct{}), all: make(chan struct{})}
	a.turns = append(a.turns, q)
	end, piece := true, time.Duration(0)
	fields := append([]string{":method", q.method, ":scheme", "https", ":authority", "localhost", ":path", a.prefix + word[:1] + "/" + steps}, a.fields...)
	for _, o := range options[1:] {
		n, _ := strconv.Atoi(o[1:])
		more := map[byte][]string{'l': {"content-length", o[1:]}, 'x': {"expect", "100-continue"}, 'f': {"x-big", strings.Repeat("f", n)}}
		if l.fr == nil {
			more['k'], more['u'] = []string{"transfer-encoding", "chunked"}, []string{"connection", "Upgrade", "upgrade", "scripts"}
		}
		switch fields = append(fields, more[o[0]]...); o[0] {
		case 'l':
			q.declared, end = n, false
		case 'k':
			q.chunked, end = true, false
		case 'p':
			piece = time.Duration(n) * time.Millisecond
		case 'w':
			fields[7] += "?watch=1"
		}
	}
	text, block := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nhost: localhost\r\n", q.method, fields[7]), bytes.Buffer{}
	enc := hpack.NewEncoder(&block)
	enc.SetMaxDynamicTableSize(0) // each head is encoded by itself
	for i := 0; i < len(fields); i += 2 {
		if _ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); i > 7 {
			text = fmt.Appendf(text, "%s: %s\r\n", fields[i], fields[i+1])
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if text = append(text, "\r\n"...); l.fr == nil {
		l.turns <- q
	} else {
		text, q.id = block.Bytes(), uint32(2*len(l.streams)+1)
		if l.streams[q.id] = q; l.err != nil {
			q.ends(l.err)
		}
	}
	pieces := slices.Collect(slices.Chunk(text, min(16<<10, len(text)/map[bool]int{true: 3, false: 1}[piece > 0]+1)))
	for i, part := range pieces {
		if last := i == len(pieces)-1; l.fr == nil {
			_, _ = l.Write(part)
		} else if i == 0 {
			_ = l.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: q.id, BlockFragment: part, EndStream: end, EndHeaders: last})
		} else {
			_ = l.fr.WriteContinuation(q.id, last, part)
		}
		<-time.After(piece)
	}
}

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
