//go:build e2e

package hostile

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// inner is the request that an attacker hides in another one. It must never reach a backend or be answered.
const inner = "GET /apis/GV/v1/smuggled HTTP/1.1\r\nHost: x\r\nX-Remote-User: system:admin\r\nX-Remote-Group: system:masters\r\n\r\n"

// smuggled is one ambiguous request, of a class of those that net/http's tests hold, as bytes. GV stands for the API
// group, INNER for inner.
type smuggled struct {
	name, text string
	want       []int // the statuses that are allowed. Refusals end the connection.
	whole      bool  // says that the request is valid, and what follows it is a second one, which is answered, too
}

func smuggling() []smuggled {
	const head = "POST /apis/GV/v1/namespaces/default/widgets HTTP/1.1\r\nHost: x\r\n"
	body := func(name, fields string) smuggled {
		return smuggled{name: name, text: head + fields + "\r\n0\r\n\r\nINNER", want: []int{400, 501}}
	}
	line := func(name, first string, want ...int) smuggled {
		return smuggled{name: name, text: first + "\r\nHost: x\r\nConnection: close\r\n\r\n", want: want}
	}
	list := []smuggled{
		// RFC 9112 §6.1: the length is ignored, and the connection is closed after the answer.
		{name: "length and chunked", text: head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nINNER", want: []int{200, 201, 400, 409, 422}},
		body("two lengths", "Content-Length: 5\r\nContent-Length: 6\r\n"),
		body("signed length", "Content-Length: +5\r\n"),
		body("two encodings", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
		body("identity, then chunked", "Transfer-Encoding: identity, chunked\r\n"),
		body("blank before the colon", "Transfer-Encoding : chunked\r\n"),
		body("bare CR in a field", "X: a\rTransfer-Encoding: chunked\r\n"),
		body("underscore", "Transfer_Encoding: chunked\r\nContent-Length: 5, 5, x\r\n"),
		{name: "bad chunk size", text: head + "Transfer-Encoding: chunked\r\n\r\n5x\r\nhello\r\n0\r\n\r\nINNER", want: []int{400, 502, 503}},
		{name: "chunk ends with LF alone", text: head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\nINNER", want: []int{400, 502, 503}},
		{name: "endless chunk extensions", text: head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;"+strings.Repeat("e", 1000)+"\r\nx\r\n", 100) + "0\r\n\r\nINNER", want: []int{400, 502, 503}},
		{name: "forged trailers", text: head + "Transfer-Encoding: chunked\r\nTrailer: X-Remote-User, Content-Length\r\nConnection: close\r\n\r\n2\r\n{}\r\n0\r\nX-Remote-User: system:admin\r\nContent-Length: 99\r\n\r\n", want: []int{200, 201, 400, 409, 422}},
		{name: "two hosts", text: "GET /apis/GV/v1/widgets HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", want: []int{400}},
		// RFC 9112 §5.2 lets a server replace a line's folding by a blank. Then these are valid,
		// and what follows their body is a second request.
		{name: "folded length", text: head + "Content-Length:\r\n 5\r\n\r\n0\r\n\r\nINNER", want: []int{200, 201, 400, 409, 422}, whole: true},
		line("CONNECT", "CONNECT localhost:443 HTTP/1.1", 400, 405),
		line("absolute form", "GET https://other/apis/GV/v1/widgets HTTP/1.1", 200),
		line("HTTP/2.0 as text", "PRI * HTTP/2.0", 400, 404, 505),
		line("dot segments", "GET /api/v1/../../apis/GV/v1/smuggled HTTP/1.1", 404),
		line("backslash", "GET /api\\..\\apis/GV/v1/smuggled HTTP/1.1", 400, 404),
		line("fragment", "GET /apis/other.example.com/v1#/../../GV/v1/smuggled HTTP/1.1", 400, 404),
		{name: "bare LF ends the head", text: "GET /apis/GV/v1/widgets HTTP/1.1\nHost: x\n\nINNER", want: []int{200, 400}, whole: true},
		{name: "two requests in one segment", text: "GET /apis/GV/v1/widgets HTTP/1.1\r\nHost: x\r\n\r\nINNER", want: []int{200}, whole: true},
	}
	// Fields that only Fairlead may remove or set, declared as hop-by-hop.
	for _, fields := range []string{
		"X-Remote-User", "x-remote-group, X-Remote-Extra-Scope", "X-Remote-User, Authorization", "X-Forwarded-For, Audit-Id, Fairlead-Via", "Host, Content-Length", "keep-alive, Transfer-Encoding",
		"X-Remote-User\r\nConnection: X-Remote-Group", ",,, x-remote-user ,", "TE, Trailer, Upgrade",
	} {
		text := strings.Replace(head, "/widgets ", "/widgets/widget-001/exec ", 1) + "X-Remote-User: system:admin\r\nConnection: close, " + fields + "\r\nContent-Length: 2\r\n\r\n{}"
		list = append(list, smuggled{name: "Connection lists " + fields, text: text, want: []int{200}})
	}
	return list
}

// testSmuggling sends the table to a backend of each protocol, and checks what arrived there.
func testSmuggling(t *testing.T, d *door) {
	old := d.w.extension(t, "old", 0)
	d.register(t, "old", old, `fairlead.dev/http1: "true"`)
	d.serves(t, widgets("old"))
	for group, backend := range map[string]*extension.Server{"target.example.com": d.target, "old.example.com": old} {
		for _, s := range smuggling() {
			t.Run(group+" "+s.name, func(t *testing.T) { d.smuggle(t, s, group, backend) })
		}
	}
	t.Run("a head without end", func(t *testing.T) { testHugeHead(t, d) })
}

// raw opens an HTTP/1.1 connection of the attacker.
func (d *door) raw(t *testing.T) *tls.Conn {
	t.Helper()
	c := d.w.as("attacker")
	c.NextProtos = []string{"http/1.1"}
	conn := must.Get((&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", d.Front))(t)
	t.Cleanup(func() { _ = conn.Close() })
	must.Do(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn.(*tls.Conn) //nolint:forcetypeassert // a tls.Dialer makes no other
}

// answers reads up to most responses, or until the connection ends.
func answers(t *testing.T, conn io.Reader, most int) []int {
	t.Helper()
	var list []int
	for in := bufio.NewReader(conn); len(list) < most; {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			break
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			break
		}
		list = append(list, res.StatusCode)
	}
	return list
}

func (d *door) smuggle(t *testing.T, s smuggled, group string, backend *extension.Server) {
	backend.Forget()
	conn := d.raw(t)
	text := strings.NewReplacer("INNER", inner, "GV", group).Replace(strings.ReplaceAll(s.text, "INNER", inner))
	_, cut := io.WriteString(conn, text) // a refusal may end the connection before all is sent; then the answer may be lost, too
	most := 1
	if s.whole {
		most = 2
	}
	got := answers(t, conn, most)
	if len(got) == 0 && cut == nil || len(got) > 0 && !slices.Contains(s.want, got[0]) {
		t.Errorf("answered %v, want one of %v", got, s.want)
	}
	if !s.whole && len(got) > 0 && got[0] >= 400 {
		rest, err := io.ReadAll(io.LimitReader(conn, 1<<16))
		check.Same(t, true, err != nil || !bytes.Contains(rest, []byte("HTTP/1.1")), "the refusal was followed by %q", rest)
	}
	for _, r := range backend.Requests() {
		user := r.Header.Get("X-Remote-User")
		if !strings.Contains(r.Target, "widgets") && !strings.Contains(r.Target, "smuggled") {
			continue // Fairlead's own
		}
		check.Same(t, true, !strings.Contains(r.Target, "smuggled") || s.whole, "the hidden request arrived: %s %s as %v", r.Method, r.Target, user)
		if groups := r.Header["X-Remote-Group"]; len(r.Header["X-Remote-User"]) != 1 || user != "attacker" || !slices.Equal(groups, []string{"system:authenticated"}) || len(r.Trailer) > 0 {
			t.Errorf("%s %s arrived as %v of %v, with the trailer %v", r.Method, r.Target, r.Header["X-Remote-User"], groups, r.Trailer)
		}
		if r.Header.Get("X-Forwarded-For") != "127.0.0.1" || r.Header.Get("Audit-Id") == "" || r.Header.Get("Fairlead-Via") == "" {
			t.Errorf("%s %s arrived with %v", r.Method, r.Target, r.Header)
		}
	}
}

// testHugeHead sends header lines until Fairlead refuses: at 1 MiB, like kube-apiserver.
func testHugeHead(t *testing.T, d *door) {
	conn := d.raw(t)
	_, err := io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: x\r\n")
	sent := 0
	for line := "X-Endless: " + strings.Repeat("e", 8000) + "\r\n"; err == nil && sent < 4*mib; sent += len(line) {
		_, err = io.WriteString(conn, line)
	}
	got := answers(t, conn, 1)
	t.Logf("answered %v after %d KiB at most", got, sent>>10)
	if sent >= 4*mib && (len(got) == 0 || got[0] != http.StatusRequestHeaderFieldsTooLarge) {
		t.Errorf("%d bytes of head were read and answered with %v", sent, got)
	}
}
