package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// Strip says which of a client's fields are not forwarded. Its zero value strips only hop-by-hop
// fields and must not be used toward a backend; decide fills it in.
type Strip struct {
	authn *authn.Authenticator
	// pool is the pool over which the request is sent. It decides which credentials are stripped.
	pool authn.Pool
	// upgrade says that the request is an upgrade.
	upgrade bool
	// listed are the names that the Connection fields list, see Head.
	listed map[string]bool
}

func (p *Proxy) strip(h *Head, pool authn.Pool) Strip {
	return Strip{authn: p.cfg.Authn, pool: pool, listed: h.listed, upgrade: h.Upgrade != ""}
}

// Removes reports whether a field is not forwarded, which includes all that Decision.Set replaces.
// The name must be in lower case.
func (s *Strip) Removes(name string) bool {
	switch name {
	case "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-uri", "x-real-ip", loopHeader, auditHeader:
		return true
	case "sec-websocket-protocol": // it may hold a token, and has no use without an upgrade
		if !s.upgrade {
			return true
		}
	}
	if hopByHop(name) || s.listed[name] {
		return true
	}
	return s.authn == nil || s.authn.Strip(name, s.pool)
}

// maxListed limits the names that all Connection fields of a head list. Real ones list up to three.
const maxListed = 32

// listed returns the names that Connection fields list, in lower case, without tokens that have a
// meaning of their own. It makes one set for a head, so that a field costs one look-up however many
// names there are. It reports false if there are more than maxListed, empty ones included.
func listed(lines []string) (names map[string]bool, ok bool) {
	n := 0
	for _, line := range lines {
		for token := range strings.SplitSeq(line, ",") {
			if n++; n > maxListed {
				return nil, false
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
	return names, true
}

// namesCaller reports whether a field says who the caller is. Listing such a field in Connection
// must not remove it, as it does not at kube-apiserver: otherwise a user behind an impersonating
// proxy would become that proxy.
func namesCaller(name string) bool {
	return name == "authorization" || strings.HasPrefix(name, "impersonate-")
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
		if f := h.get("x-forwarded-host"); f != "" {
			host = f
		}
	}
	return append(set,
		hpack.HeaderField{Name: "x-forwarded-for", Value: client},
		hpack.HeaderField{Name: "x-forwarded-host", Value: host},
		hpack.HeaderField{Name: "x-forwarded-proto", Value: "https"},
		hpack.HeaderField{Name: loopHeader, Value: via},
	)
}

// identified adds the audit ID with which a request is forwarded and answered: the client's, if it
// is short enough, or a new one.
func identified(set []hpack.HeaderField, h *Head) ([]hpack.HeaderField, string) {
	id := h.get(auditHeader)
	ours := id == "" || len(id) > maxAuditID
	if ours {
		id = newAuditID()
	}
	// Sensitive keeps the ID out of HPACK's tables, where it would evict reusable fields with every
	// request.
	return append(set, hpack.HeaderField{Name: auditHeader, Value: id, Sensitive: ours}), id
}

// auditHeader correlates the logs of all servers that handle a request.
const auditHeader = "audit-id"

// maxAuditID is the length at which k8s.io/apiserver truncates an ID in its log (truncateAuditID in
// pkg/audit).
const maxAuditID = 64

// maxVia limits the loop header to about sixty hops; a longer one is replaced. A chain of that
// length is a loop that does not pass through this process.
const maxVia = 1024

// newAuditID returns a version 4 UUID. It correlates logs and is no secret, so the runtime's
// generator (ChaCha8) is good enough.
func newAuditID() string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:], rand.Uint64()&^0xf000|0x4000)  //nolint:gosec // see above
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()&^(3<<62)|1<<63) //nolint:gosec // see above
	text := [36]byte{8: '-', 13: '-', 18: '-', 23: '-'}
	hex.Encode(text[:], id[:4])
	hex.Encode(text[9:], id[4:6])
	hex.Encode(text[14:], id[6:8])
	hex.Encode(text[19:], id[8:10])
	hex.Encode(text[24:], id[10:])
	return string(text[:])
}
