package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// cause is one for which handshakes of clients fail.
type cause struct {
	name    string
	texts   *regexp.Regexp // of errors. Those of crypto/tls have no types: its AlertError is only QUIC's
	meaning string         // with what to do
	count   float64
	last    time.Time // with the client at address from
	from    net.Addr
}

// handshakes counts those of clients that failed, by cause.
type handshakes struct {
	since  time.Time
	mu     sync.Mutex // guards what follows
	causes []cause    // the first that matches counts
}

func newHandshakes() *handshakes {
	is := regexp.MustCompile
	return &handshakes{since: time.Now(), causes: []cause{
		{name: "timeout", texts: is("deadline exceeded"),
			meaning: fmt.Sprintf("the client did not end it in %v: does the network lose large packets?",
				readHeaderTimeout)},
		{name: "plain_http", texts: is("^first record (GET /|HEAD |POST |PUT /|PATCH|DELET|OPTIO)"),
			meaning: "the client speaks HTTP without TLS: give it an https URL"},
		{name: "proxy_header", texts: is("^first record (PROXY|\r\n\r\n\x00)|^PROXY protocol"),
			meaning: "those in --proxy-protocol-from must begin with a header of the PROXY protocol, " +
				"and others must not"},
		{name: "not_tls", texts: is("^first record "),
			meaning: "the client does not speak TLS: it takes this port for another service's, or scans ports"},
		{name: "certificate_refused", texts: is("remote error: .* certificate"),
			meaning: "the client does not accept the serving certificate: give the client the CA, " +
				"or the certificate the name by which the client connects"},
		{name: "version", texts: is("unsupported versions|SSLv2|protocol version not supported"),
			meaning: "the client speaks no version of TLS that is accepted: update it, or see --tls-min-version"},
		{name: "cipher",
			texts: is("supported by both|peer doesn't support|error: tls: handshake failure|insufficient security"),
			meaning: "the client shares no cipher suite, key exchange or signature algorithm: " +
				"see --tls-cipher-suites, and the kind of the serving key"},
		{name: "no_room", texts: is("closed network connection"),
			meaning: "no memory for what the client sent, or no place for its address: see --max-connections"},
		{name: "closed", texts: is("EOF|connection reset|broken pipe"),
			meaning: "the client hung up: see its own log, and its time limit"},
		{name: "other", texts: is(""), meaning: "see the log with --v=4"},
	}}
}

// errUnused is the error of a connection that ended before its first byte, as a balancer's check.
var errUnused = errors.New("not used")

// fail counts an error, and returns the name of its cause: "" if it is no failure.
func (h *handshakes) fail(err error, from net.Addr) string {
	if errors.Is(err, errUnused) || errors.Is(err, context.Canceled) { // the port closes
		return ""
	}
	text, _, _ := strings.Cut(err.Error(), `"`) // the rest is the client's, up to a megabyte, and costs a second
	if first, ok := errors.AsType[tls.RecordHeaderError](err); ok && first.Conn != nil {
		text = "first record " + string(first.RecordHeader[:])
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &h.causes[slices.IndexFunc(h.causes, func(c cause) bool { return c.texts.MatchString(text) })]
	c.count, c.last, c.from = c.count+1, time.Now(), from
	return c.name
}

func (h *handshakes) all() []cause {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.causes)
}

// Failing says why handshakes of clients failed within the last hour, and what to do; the most frequent cause first.
func (l *Listener) Failing() (lines []string) {
	all := l.all()
	slices.SortStableFunc(all, func(a, b cause) int { return int(b.count - a.count) })
	for _, c := range all {
		if time.Since(c.last) < time.Hour {
			lines = append(lines, fmt.Sprintf("%.0f TLS handshakes failed in %v at port %s, the last with %v: %s",
				c.count, time.Since(l.since).Round(time.Second), l.port, c.from, c.meaning))
		}
	}
	return lines
}
