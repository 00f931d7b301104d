package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// Strip tells which of a client's fields and trailers are not forwarded. Its zero value strips hop-by-hop fields only and must not be used toward a
// backend; decide fills it in.
type Strip struct {
	authn *authn.Authenticator
	// pool is where the request leaves: it decides about credentials.
	pool authn.Pool
	// upgrade says that the request is one.
	upgrade bool
	// connection are the lower-case names that an HTTP/1.1 Connection field lists (RFC 9110 §7.6.1).
	connection []string
}

func (p *Proxy) strip(h *Head, pool authn.Pool) Strip {
	return Strip{authn: p.cfg.Authn, pool: pool, connection: connectionListed(h), upgrade: h.Upgrade != ""}
}

// Removes reports whether the field or trailer of a lower-case name stays behind.
func (s *Strip) Removes(name string) bool {
	switch name {
	case "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-uri", loopHeader:
		return true
	case "sec-websocket-protocol": // it can hold a token, and is of no use without an upgrade
		if !s.upgrade {
			return true
		}
	}
	if hopByHop(name) || slices.Contains(s.connection, name) {
		return true
	}
	return s.authn == nil || s.authn.Strip(name, s.pool)
}

// RemovesTrailer is Removes for a trailer. None says who asks or how long the body is, whoever may see
// such a field in the head: what was decided from the head must stay true.
func (s *Strip) RemovesTrailer(name string) bool {
	strict := *s
	strict.pool = authn.PoolRemote
	return !httpguts.ValidTrailerHeader(name) || strict.Removes(name)
}

// connectionListed returns what the Connection fields list, less the tokens that have a meaning of their own and less what says as whom the request is made.
// What a client lists is dropped even when it is one of our own names: we set those after stripping.
func connectionListed(h *Head) []string {
	var names []string
	h.steps += len(h.Fields)
	for i := range h.Fields {
		if h.Fields[i].Name == "connection" {
			names = listedIn(names, h.Fields[i].Value)
		}
	}
	return slices.DeleteFunc(names, personal)
}

// listedIn adds to names what lines of Connection list, in lower case.
func listedIn(names []string, lines ...string) []string {
	for _, line := range lines {
		for token := range strings.SplitSeq(line, ",") {
			token = strings.ToLower(strings.TrimSpace(token))
			if token != "" && token != "close" && token != "keep-alive" && token != "upgrade" {
				names = append(names, token)
			}
		}
	}
	return names
}

// personal fields say as whom a request is made. Listing them in Connection must not take them away, as it does not at kube-apiserver: the user of a proxy that
// impersonates would become that proxy.
func personal(name string) bool {
	return name == "authorization" || strings.HasPrefix(name, "impersonate-")
}

// forwarded adds what tells the next hop about this one. X-Forwarded-For is appended to only when the client is a front proxy that we trust; anybody
// else's is a claim, and is dropped.
func (p *Proxy) forwarded(set []hpack.HeaderField, h *Head, trusted bool) []hpack.HeaderField {
	via, client := p.instance, h.RemoteIP
	if seen := h.get(loopHeader); seen != "" && len(seen) < maxVia {
		via = seen + ", " + via
	}
	host := h.Authority
	if trusted {
		if f := h.get("x-forwarded-for"); f != "" {
			client = f + ", " + client
		}
		if f := h.get("x-forwarded-host"); f != "" {
			host = f
		}
	}
	set = append(set,
		hpack.HeaderField{Name: "x-forwarded-for", Value: client},
		hpack.HeaderField{Name: "x-forwarded-host", Value: host},
		hpack.HeaderField{Name: "x-forwarded-proto", Value: "https"},
		hpack.HeaderField{Name: loopHeader, Value: via},
	)
	set, _ = identified(set, h)
	return set
}

// identified returns auditID, and adds an ID of ours if there is none yet.
func identified(set []hpack.HeaderField, h *Head) ([]hpack.HeaderField, string) {
	if id := auditID(set, h); id != "" {
		return set, id
	}
	id := newAuditID()
	// Sensitive keeps it out of the tables of HPACK, where it would push out, request by request, what is worth keeping.
	return append(set, hpack.HeaderField{Name: auditHeader, Value: id, Sensitive: true}), id
}

// auditHeader correlates the logs of all who see a request.
const auditHeader = "audit-id"

// maxAuditID is as much of an ID as k8s.io/apiserver writes down (truncateAuditID in pkg/audit).
const maxAuditID = 64

// auditID is what a request is forwarded or answered with: the client's own, if it is not too long to
// be sent back, or ours. Empty: it has none yet.
func auditID(set []hpack.HeaderField, h *Head) string {
	for _, f := range slices.Backward(set) {
		if f.Name == auditHeader {
			return f.Value
		}
	}
	if id := h.get(auditHeader); len(id) <= maxAuditID {
		return id
	}
	return ""
}

// maxVia bounds the loop header: some sixty hops, after which it starts anew. A chain of that length is a loop that does not come through here.
const maxVia = 1024

// newAuditID is a version 4 UUID. It correlates logs and keeps no secret, so the runtime's own generator (ChaCha8) does.
func newAuditID() string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:], rand.Uint64()&^0xf000|0x4000)  //nolint:gosec // see above
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()&^(3<<62)|1<<63) //nolint:gosec // see above
	text := [36]byte{8: '-', 13: '-', 18: '-', 23: '-'}
	hex.Encode(text[:8], id[:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:], id[10:])
	return string(text[:])
}
