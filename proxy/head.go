package proxy

import (
	"maps"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// Head is a request head of either protocol. decide reads nothing else of a request.
type Head struct {
	// Method is as the client sent it.
	Method string
	// Authority is the Host or :authority.
	Authority string
	// Path is the escaped path, byte for byte as on the wire, without the query.
	Path string
	// RawQuery is everything after the first '?', byte for byte. HasQuery distinguishes "/x?" from
	// "/x".
	RawQuery string
	HasQuery bool
	// Fields are the header fields in order, with names in lower case and without pseudo-header
	// fields. They are read-only and valid only during the decision.
	Fields []hpack.HeaderField
	// Upgrade is the protocol that an HTTP/1.1 client wants to switch to, in its own spelling.
	// Empty means none, or none that is offered.
	Upgrade string
	// Arrived is when the head arrived. decide takes zero as now.
	Arrived time.Time
	// Remote is the client's address and port, RemoteIP the address alone.
	Remote, RemoteIP string

	// listed are the names that an HTTP/1.1 head's Connection fields list, in lower case, but those
	// that name the caller (RFC 9110 §7.6.1).
	listed map[string]bool
	// invalid refuses the head, whatever it asks for.
	invalid error
}

// get returns the first value of a field. The name must be in lower case.
func (h *Head) get(name string) string {
	for i := range h.Fields {
		if h.Fields[i].Name == name {
			return h.Fields[i].Value
		}
	}
	return ""
}

// list returns the values of all fields of a name as one list (RFC 9110 §5.3). The name must be in
// lower case.
func (h *Head) list(name string) string {
	var values []string
	for i := range h.Fields {
		if h.Fields[i].Name == name && h.Fields[i].Value != "" {
			values = append(values, h.Fields[i].Value)
		}
	}
	return strings.Join(values, ", ")
}

// headOf returns the head of a net/http request. Path and query come from its URL, which the muxes
// of the pages also use, so that what is authorized is what is served. RawPath is set if url.URL
// would write the path differently, so Path has the bytes of the request line. How many names a
// head has is limited where it is read (proxy/front, proxy/h2/wire).
func headOf(r *http.Request, arrived time.Time) *Head {
	h := &Head{Method: r.Method, Authority: r.Host, Remote: r.RemoteAddr, RemoteIP: hostOnly(r.RemoteAddr), Arrived: arrived}
	h.RawQuery, h.HasQuery = r.URL.RawQuery, r.URL.ForceQuery || r.URL.RawQuery != ""
	if h.Path = r.URL.RawPath; h.Path == "" {
		h.Path = r.URL.EscapedPath()
	}
	var ok bool
	if h.listed, ok = listed(r.Header["Connection"]); !ok {
		h.invalid = errListed
	}
	maps.DeleteFunc(h.listed, func(name string, _ bool) bool { return namesCaller(name) })
	h.Fields = make([]hpack.HeaderField, 0, len(r.Header))
	for name, values := range r.Header {
		lower := strings.ToLower(name)
		if lower == "expect" {
			continue // a promise of one hop, which net/http keeps
		}
		for _, v := range values {
			h.Fields = append(h.Fields, hpack.HeaderField{Name: lower, Value: v})
		}
	}
	h.Upgrade = upgradeOf(r)
	return h
}

// upgradeOf returns the protocol that a request asks to switch to, and the empty string if it is no
// upgrade. It is the only check. HTTP/2 has no upgrades (RFC 9113 §8.6), HTTP/1.0 had none (RFC
// 9110 §7.8). Protocols that Kubernetes does not use are ignored, as RFC 9110 allows: an h2c tunnel
// to a backend would carry our client certificate, and through it the client could send any
// X-Remote-User. kube-apiserver also accepts x-upgrade in Connection
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
