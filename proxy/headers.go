package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// Strip tells which of a client's fields and trailers are not forwarded. Its zero value strips hop-by-hop fields only and must not be used toward a
// backend; Decide fills it in.
type Strip struct {
	authn *authn.Authenticator
	// pool is where the request leaves: it decides about credentials.
	pool authn.Pool
	// connection are the lower-case names that an HTTP/1.1 Connection field lists (RFC 9110 §7.6.1).
	connection []string
}

// Removes reports whether the field or trailer of a lower-case name stays behind.
func (s *Strip) Removes(name string) bool {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings",
		"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-uri", loopHeader:
		return true
	}
	if slices.Contains(s.connection, name) {
		return true
	}
	return s.authn == nil || s.authn.Strip(name, s.pool)
}

// cutsProtocol reports whether tokens must be cut out of Sec-WebSocket-Protocol.
func (s *Strip) cutsProtocol() bool {
	return s.pool == authn.PoolRemote || s.pool == authn.PoolCertificate
}

// connectionListed returns what the Connection fields list, less the tokens that have a meaning of their own and less what says as whom the request is made.
// What a client lists is dropped even when it is one of our own names: we set those after stripping.
func connectionListed(h *Head) []string {
	var names []string
	for i := range h.Fields {
		if h.Fields[i].Name != "connection" {
			continue
		}
		for token := range strings.SplitSeq(h.Fields[i].Value, ",") {
			token = strings.ToLower(strings.TrimSpace(token))
			if token != "" && token != "close" && token != "keep-alive" && token != "upgrade" && !personal(token) {
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
	if !h.has(auditHeader) {
		// Sensitive keeps it out of the tables of HPACK, where it would push out, request by request, what is worth keeping.
		set = append(set, hpack.HeaderField{Name: auditHeader, Value: newAuditID(), Sensitive: true})
	}
	return set
}

// auditHeader correlates the logs of all who see a request.
const auditHeader = "audit-id"

// auditID is what a request is forwarded with: the client's own, or ours. Empty: it was not forwarded.
func auditID(set []hpack.HeaderField, h *Head) string {
	for _, f := range slices.Backward(set) {
		if f.Name == auditHeader {
			return f.Value
		}
	}
	return h.get(auditHeader)
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
