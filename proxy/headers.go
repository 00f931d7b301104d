package proxy

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// removes reports whether a client's field, in lower case, is not forwarded; so are all that Decision.Set replaces.
func (x *exchange) removes(name string) bool {
	dashed := strings.ReplaceAll(name, "_", "-") // servers that are like CGI read both alike
	switch dashed {
	case "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-uri", "x-real-ip",
		loopHeader, auditHeader:
		return true
	}
	if dashed == "sec-websocket-protocol" && x.head.Upgrade == "" {
		return true // it may hold a token, and has no use without an upgrade
	}
	return hopByHop(dashed) || x.head.listed[name] || x.p.cfg.Authn.Strip(name, x.decision.Pool)
}

const maxListed = 32 // limits the names that all Connection fields of a head list. Real ones list up to three

// listed returns the names that Connection fields list, in lower case, without tokens with a meaning of their own. With
// one set for a head, a field costs one look-up, however many. More than maxListed, empty ones included, are an error.
func listed(lines []string) (names map[string]bool, err error) {
	n := 0
	for _, line := range lines {
		for token := range strings.SplitSeq(line, ",") {
			if n++; n > maxListed {
				return nil, errListed
			}
			token = strings.ToLower(strings.TrimSpace(token))
			if token != "" && token != "close" && token != "keep-alive" && token != "upgrade" {
				if names == nil {
					names = map[string]bool{}
				}
				names[token] = true
			}
		}
	}
	return names, nil
}

// forwarded adds the fields that describe this hop to the next one. It appends to X-Forwarded-For
// only if the client is a trusted front proxy; from other clients the field is dropped.
func (p *Proxy) forwarded(set []hpack.HeaderField, h *Head, trusted bool) []hpack.HeaderField {
	via, client := p.instance, h.RemoteIP
	if seen := h.get(loopHeader); seen != "" && len(seen) < maxVia {
		via = seen + ", " + via
	}
	host := h.Authority
	if trusted {
		if f := h.list("x-forwarded-for"); f != "" {
			client = f + ", " + client
		}
		host = cmp.Or(h.get("x-forwarded-host"), host)
	}
	if strings.Contains(h.list("te"), "trailers") { // an answer's are passed on; gRPC's servers refuse who takes none
		set = append(set, hpack.HeaderField{Name: "te", Value: "trailers"})
	}
	return append(set,
		hpack.HeaderField{Name: "x-forwarded-for", Value: client},
		hpack.HeaderField{Name: "x-forwarded-host", Value: host},
		hpack.HeaderField{Name: "x-forwarded-proto", Value: "https"},
		hpack.HeaderField{Name: loopHeader, Value: via},
	)
}

const auditHeader = "audit-id" // correlates the logs of all servers that handle a request

const maxAuditID = 64 // the length at which k8s.io/apiserver truncates an ID in its log (truncateAuditID in pkg/audit)

// maxVia limits the loop header to some sixty hops. A longer one is replaced: such a loop does not pass through here.
const maxVia = 1024

// newAuditID returns a version 4 UUID. It is no secret, so the runtime's generator (ChaCha8) is good enough.
func newAuditID() string {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:], rand.Uint64()&^0xf000|0x4000)  //nolint:gosec // see above
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()&^(3<<62)|1<<63) //nolint:gosec // see above
	return id.String()                                               //fairlead:boundary formats 16 bytes
}

// Head is a request head of either protocol. decide reads nothing else of a request.
type Head struct {
	wire.Head           // what is forwarded over HTTP/2. Its Fields are read-only here
	Upgrade   string    // the protocol that an HTTP/1.1 client wants, in its own spelling. Empty: none, or none offered
	Arrived   time.Time // of the head
	// Remote is the client's address and port, RemoteIP the address alone.
	Remote, RemoteIP string

	invalid error // refuses the head, whatever it asks for
	// listed are the names in an HTTP/1.1 head's Connection fields, in lower case, but the caller's (RFC 9110 §7.6.1).
	listed map[string]bool
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

// list returns the values of all fields of a name as one list (RFC 9110 §5.3). The name must be in lower case.
func (h *Head) list(name string) string {
	var values []string
	for i := range h.Fields {
		if h.Fields[i].Name == name && h.Fields[i].Value != "" {
			values = append(values, h.Fields[i].Value)
		}
	}
	return strings.Join(values, ", ")
}

// headOf returns the head of a net/http request. Path and query come from its URL, which the muxes of the pages also
// use, so that what is authorized is what is served. RawPath is set if url.URL would write the path differently, so
// Path has the request line's bytes. How many names a head has is limited where it is read.
func headOf(r *http.Request, arrived time.Time) *Head {
	h := &Head{Remote: r.RemoteAddr, RemoteIP: hostOnly(r.RemoteAddr), Arrived: arrived}
	h.Method, h.Authority = r.Method, r.Host
	target := r.URL.RawPath
	if target == "" {
		target = r.URL.EscapedPath() // which would read a RawPath once more
	}
	if r.URL.ForceQuery || r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	h.SetTarget(target)
	h.Size = len(target)
	h.listed, h.invalid = listed(r.Header["Connection"])
	// Listing a field that says who the caller is must not remove it, as it does not at
	// kube-apiserver: otherwise a user behind an impersonating proxy would become that proxy.
	maps.DeleteFunc(h.listed, func(name string, _ bool) bool {
		return name == "authorization" || name == "sec-websocket-protocol" || strings.HasPrefix(name, "impersonate-")
	})
	h.Fields = make([]hpack.HeaderField, 0, len(r.Header))
	for name, values := range r.Header {
		lower := strings.ToLower(name)
		if lower == "expect" {
			continue // a promise of one hop, which net/http keeps
		}
		for _, v := range values {
			f := hpack.HeaderField{Name: lower, Value: v}
			h.Fields, h.Size = append(h.Fields, f), h.Size+int(f.Size())
		}
	}
	h.Upgrade = upgradeOf(r)
	return h
}

// upgradeOf returns the protocol that a request asks to switch to, or nothing. It is the only check. HTTP/2 has no
// upgrades (RFC 9113 §8.6), HTTP/1.0 had none (RFC 9110 §7.8). Protocols that Kubernetes lacks are ignored, as RFC 9110
// allows: an h2c tunnel would carry our client certificate, and through it the client could send any X-Remote-User.
// kube-apiserver also accepts x-upgrade in Connection (k8s.io/streaming/pkg/httpstream); we follow RFC 9110 §7.6.1.
func upgradeOf(r *http.Request) string {
	protocol, asked := r.Header.Get("Upgrade"), httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade")
	known := strings.EqualFold(protocol, "websocket") || strings.EqualFold(protocol, "SPDY/3.1")
	if asked && known && r.ProtoMajor == 1 && r.ProtoMinor > 0 {
		return protocol
	}
	return ""
}

func hostOnly(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// hopByHop reports whether a field, in lower case, is a connection's (RFC 9110 §7.6.1): neither direction forwards it.
func hopByHop(name string) bool {
	switch name {
	case "te", "trailer", "proxy-authenticate", "http2-settings":
		return true
	}
	return wire.ConnectionSpecific(name)
}

// withholds reports whether a field of the backend's response is not forwarded: in an interim head,
// the final head, a trailer, a 101, or a refused upgrade. An extension server must not decide which
// other origins' pages may read the cluster's API in a browser; upstream drops these fields, too.
func (d *Decision) withholds(name string) bool {
	switch name {
	case "access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods",
		"access-control-allow-origin":
		return d.Action == ToRemote
	}
	return hopByHop(name)
}

// clean removes such fields from a header or trailer that net/http has read.
func (d *Decision) clean(header http.Header) error {
	names, err := listed(header["Connection"])
	if err != nil || len(header) > wire.MaxNames {
		return errManyFields
	}
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		lower := strings.ToLower(name)
		return d.withholds(lower) || names[lower]
	})
	return nil
}

var errManyFields = badResponse("its head is too large")

// rejects reports whether a remote's response is a redirect that must not reach the client: as in
// kube-apiserver (UpgradeAwareHandler), any 3xx with a Location.
func (p *Proxy) rejects(status int, leads bool) bool {
	return !p.cfg.ForwardRedirects && leads && status/100 == 3
}

// maxInterims limits the 1xx heads of a response, as in the engine. net/http does not count them if a hook takes them.
const maxInterims = 16

var errInterims = errors.New("backend sent too many interim responses")

// interims passes 1xx heads on while its request is in progress. net/http reads them on a goroutine of the backend's
// connection, which may continue after the request has ended. Later heads must touch neither the header of another
// response to the request nor the client's connection, whose next response may have begun.
type interims struct {
	mu   sync.Mutex // guards the fields below, and w until over
	w    http.ResponseWriter
	d    *Decision
	n    int
	over bool
}

// interimsOf passes 1xx heads on until its caller calls end, which must be before the response is written. An HTTP/1.0
// client gets none: it would take the first one for the response (RFC 9110 §15.2). Nor does a client to which net/http
// writes 100 Continue when the body is read, which may be within other output.
func interimsOf(r *http.Request, w http.ResponseWriter, d *Decision) *interims {
	return &interims{w: w, d: d, over: !r.ProtoAtLeast(1, 1) || expects(r)}
}

// expects reports whether net/http's server, or the engine's for a handler, answers an expectation.
func expects(r *http.Request) bool {
	return httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue")
}

// relay passes on what a backend says about its response. 100 Continue is about the next hop.
func (h *interims) relay(code int, header textproto.MIMEHeader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n++; h.n > maxInterims {
		return errInterims
	}
	if err := h.d.clean(http.Header(header)); err != nil || h.over || code == http.StatusContinue {
		return err
	}
	to := h.w.Header() // which must not change the final head
	own := maps.Clone(to)
	clear(to)
	maps.Copy(to, header)
	h.w.WriteHeader(code)
	clear(to)
	maps.Copy(to, own)
	return nil
}

func (h *interims) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}

// browsers sets the fields of kube-apiserver's filters WithCORS and WithHSTS (k8s.io/apiserver/pkg/server/filters) on
// all answers but the local apiserver's, which has filters of its own. The filters themselves would link flow control.
type browsers struct {
	origins []*regexp.Regexp // those whose pages may read answers
	hsts    string           // empty means none
}

func newBrowsers(origins, hsts []string) (b browsers, err error) {
	b.hsts = strings.Join(hsts, "; ")
	for _, o := range origins {
		re, err := regexp.Compile(o)
		if err != nil {
			return b, fmt.Errorf("reading allowed origins: %w", err)
		}
		b.origins = append(b.origins, re)
	}
	return b, nil
}

// concern reports whether a head may be of a page of another origin. Such a request goes to
// Proxy.ServeHTTP: matching what a stranger sent takes too long for the loop.
func (b *browsers) concern(h *Head) bool { return len(b.origins) > 0 && h.get("origin") != "" }

func (b *browsers) allow(r *http.Request) bool {
	const maxOrigin = 512 // more than a scheme, a host of 253 bytes, and a port: matching takes long
	origin := r.Header.Get("Origin")
	matches := func(re *regexp.Regexp) bool { return re.MatchString(origin) }
	return origin != "" && len(origin) <= maxOrigin && slices.ContainsFunc(b.origins, matches)
}

// sign sets the fields with kube-apiserver's values. Its HSTS counts before a backend's, too (RFC 6797 §8.1).
func (b *browsers) sign(h http.Header, r *http.Request) {
	if b.hsts != "" {
		h.Set("Strict-Transport-Security", b.hsts)
	}
	if b.allow(r) {
		h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		h.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
		h.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, "+
			"Authorization, X-Requested-With, If-Modified-Since")
		h.Set("Access-Control-Expose-Headers", "Date")
		h.Set("Access-Control-Allow-Credentials", "true")
	}
}
