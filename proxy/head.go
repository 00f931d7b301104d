package proxy

import (
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// Head is a request head, whichever protocol it has come over: all that decide may look at.
type Head struct {
	// Method is as the client sent it.
	Method string
	// Authority is the Host or :authority.
	Authority string
	// Path is the escaped path, byte for byte as on the wire, without the query.
	Path string
	// RawQuery is what followed the first '?', byte for byte; HasQuery tells "/x?" from "/x".
	RawQuery string
	HasQuery bool
	// Fields are the header fields in order, names in lower case, without pseudo fields. They are read-only and valid only during the decision.
	Fields []hpack.HeaderField
	// Upgrade is the protocol that an HTTP/1.1 client asks to switch to, in its own spelling. Empty: none, or none that is offered.
	Upgrade string
	// Arrived is when the head came. Zero: now.
	Arrived time.Time
	// Remote is the address and port of the connection's other end, RemoteIP the address alone.
	Remote, RemoteIP string

	steps int // how much of the head was looked at for the decision: bytes of the target, and fields, each time anew
}

// get returns the first value of a lower-case name.
func (h *Head) get(name string) string {
	h.steps += len(h.Fields)
	for i := range h.Fields {
		if h.Fields[i].Name == name {
			return h.Fields[i].Value
		}
	}
	return ""
}

// headOf reads the head of a net/http request. Path and query come from its URL, which the pages' muxes look
// at too: what is authorized is what is served. RawPath is set where the path was not written as url.URL would
// write it, so these are the bytes of the request line, which is what is matched and forwarded.
func headOf(r *http.Request) *Head {
	h := &Head{Method: r.Method, Authority: r.Host, Remote: r.RemoteAddr, RemoteIP: hostOnly(r.RemoteAddr), Arrived: time.Now()}
	h.RawQuery, h.HasQuery = r.URL.RawQuery, r.URL.ForceQuery || r.URL.RawQuery != ""
	if h.Path = r.URL.RawPath; h.Path == "" {
		h.Path = r.URL.EscapedPath()
	}
	h.Fields = make([]hpack.HeaderField, 0, len(r.Header))
	for name, values := range r.Header {
		lower := strings.ToLower(name)
		for _, v := range values {
			h.Fields = append(h.Fields, hpack.HeaderField{Name: lower, Value: v})
		}
	}
	h.Upgrade = upgradeOf(r)
	return h
}

// upgradeOf returns the protocol that a request asks to switch to, empty if it is no upgrade. Nothing
// else says what an upgrade is. HTTP/2 has none (RFC 9113 §8.6), HTTP/1.0 had none (RFC 9110 §7.8),
// and a protocol that Kubernetes does not upgrade to is ignored, as RFC 9110 allows: a tunnel of, say,
// h2c to a backend would carry our client certificate, and behind it the client could write any
// X-Remote-User it likes. kube-apiserver takes x-upgrade in Connection for upgrade, too
// (k8s.io/streaming/pkg/httpstream); we follow RFC 9110 §7.6.1.
func upgradeOf(r *http.Request) string {
	protocol := r.Header.Get("Upgrade")
	if r.ProtoMajor != 1 || r.ProtoMinor == 0 || !httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade") {
		return ""
	}
	if strings.EqualFold(protocol, "websocket") || strings.EqualFold(protocol, "SPDY/3.1") {
		return protocol
	}
	return ""
}

func hostOnly(addr string) string {
	i := strings.LastIndexByte(addr, ':')
	if i < 0 {
		return addr
	}
	return strings.Trim(addr[:i], "[]")
}
