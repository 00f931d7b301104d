package printable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestLine(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"plain", "a b: ü 漢 😀", "a b: ü 漢 😀"},
		{"colour", "\x1b[31mred", `\u001b[31mred`},
		{"title, ended by BEL", "\x1b]0;owned\x07", `\u001b]0;owned\u0007`},
		{"C1", "\u009b31m\u0090q\u009c", `\u009b31m\u0090q\u009c`},
		{"C1 of one byte", "\x9b31m", `\ufffd31m`},
		{"DEL, backspace", "a\x7f\bb", `a\u007f\u0008b`},
		{"forged lines", "a\nerror: b\r\tc\u2028d\u0085e", "a error: b  c d e"},
		{"reordered", "a\u202egnp\u2066b\u200fc\u061cd", `a\u202egnp\u2066b\u200fc\u061cd`},
		{"tags", "a\U000E0041", `a\udb40\udc41`},
	} {
		check.Same(t, tt.want, Line(tt.text), "%s", tt.name)
	}
	check.Same(t, "a\n\tb \\u001bc", Lines("a\n\tb\r\x1bc"), "several lines")
}

// A recurring fault has a constant message, though the original differs in our port and in times.
func TestMessagesAreSteady(t *testing.T) {
	reset := func(port int) string {
		err := &net.OpError{
			Op: "read", Net: "tcp", Err: syscall.ECONNRESET,
			Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 443},
		}
		return fmt.Sprintf("failing or missing response from U: Get: %v", err)
	}
	expired := func(now string) string {
		return "x509: certificate has expired or is not yet valid: current time " + now + " is after 2020-01-01T00:00:00Z"
	}
	for _, tt := range []struct{ message, again, want string }{
		{reset(34567), reset(34568), "failing or missing response from U: Get: read tcp 10.0.0.2:443: connection reset by peer"},
		{expired("2026-11-22T06:00:00Z"), expired("2026-11-22T06:00:10Z"), "x509: certificate has expired or is not yet valid: current time is after 2020-01-01T00:00:00Z"},
		{strings.Repeat("x", 5000), strings.Repeat("x", 5000), strings.Repeat("x", 1024) + "…"},
		{"current time 3", "current time 3", "current time 3"}, // half the words of an expired certificate
	} {
		check.Same(t, [2]string{tt.want, tt.want}, [2]string{Cause(tt.message), Cause(tt.again)}, "messages")
	}
	got := Cause(strings.Repeat("ü", 600))
	check.Same(t, true, len(got) == 1024+len("…") && utf8.ValidString(got), "a message of %d bytes", len(got))
}

// No text controls a terminal, and JSON means what it meant.
func FuzzPrintable(f *testing.F) {
	f.Add("\x1b]8;;http://x\x07y\u202e\U000E0041\n\x9b")
	f.Fuzz(func(t *testing.T, text string) {
		var b bytes.Buffer
		data := must.Get(json.Marshal(text))(t)
		must.Get(JSON(&b).Write(data))(t)
		var back, want string
		must.Do(t, json.Unmarshal(b.Bytes(), &back))
		must.Do(t, json.Unmarshal(data, &want))
		check.Same(t, want, back, "JSON of %q", text)
		for _, out := range []string{Line(text), Lines(text), b.String()} {
			check.Same(t, false, strings.ContainsFunc(out, func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' }), "%q became %q", text, out)
		}
		check.Same(t, false, strings.ContainsAny(Line(text), "\n\t"), "%q became several lines", text)
	})
}
