package authn

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"
)

// bearerProtocol begins the WebSocket subprotocol by which a browser, which cannot set Authorization, presents a token.
const bearerProtocol = "base64url.bearer.authorization.k8s.io." //nolint:gosec // a prefix that everybody knows

// The ways in which such a subprotocol can be wrong, as k8s.io/apiserver/pkg/authentication/request/websocket tells them apart.
var (
	errTwoTokens   = fmt.Errorf("%w: several bearer tokens in the subprotocols", ErrUnauthenticated)
	errEncoding    = fmt.Errorf("%w: the bearer token in the subprotocols is not base64url", ErrUnauthenticated)
	errNotText     = fmt.Errorf("%w: the bearer token in the subprotocols is not UTF-8", ErrUnauthenticated)
	errNoneToSpeak = fmt.Errorf("%w: a bearer token but no other subprotocol", ErrUnauthenticated)
)

// protocolToken finds the token in a WebSocket request's subprotocols; empty without an error when there is none.
func protocolToken(h Head) (string, error) {
	token, seen, others := "", false, false
	for _, f := range h {
		if f.Name != fieldProtocol {
			continue
		}
		for protocol := range strings.SplitSeq(f.Value, ",") {
			encoded, ok := strings.CutPrefix(strings.TrimSpace(protocol), bearerProtocol)
			if !ok {
				others = true
				continue
			}
			if seen {
				return "", errTwoTokens
			}
			seen = true
			raw, err := base64.RawURLEncoding.DecodeString(encoded)
			if err != nil {
				return "", errEncoding // not the library's error: it could quote the token
			}
			if !utf8.Valid(raw) {
				return "", errNotText
			}
			token = string(raw)
		}
	}
	// The server must answer with a subprotocol, and must not answer with the token.
	if token != "" && !others {
		return "", errNoneToSpeak
	}
	return token, nil
}

// CutProtocol takes bearer tokens out of one Sec-WebSocket-Protocol value and keeps the others in order. Everything but the token pools must do it to
// every such line, upgrade or not; a line that comes back empty is left out. A line without a token comes back as it is.
func CutProtocol(line string) string {
	if !containsFold(line, bearerProtocol) {
		return line
	}
	var kept []string
	for protocol := range strings.SplitSeq(line, ",") {
		// In any case and anywhere in it: what upstream would not take for a token is a token all the same to who finds it in a log.
		if !containsFold(protocol, bearerProtocol) {
			kept = append(kept, strings.TrimSpace(protocol))
		}
	}
	return strings.Join(kept, ",")
}

// containsFold reports whether s contains sub, which is lower-case, in any case.
func containsFold(s, sub string) bool {
	for i := 0; i+len(sub) <= len(s); i++ {
		if hasPrefix(s[i:], sub) {
			return true
		}
	}
	return false
}
