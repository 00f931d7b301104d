package authn

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"
)

// bearerProtocol is the prefix of the WebSocket subprotocol with which a browser sends a token,
// because it cannot set Authorization.
const bearerProtocol = "base64url.bearer.authorization.k8s.io." //nolint:gosec // a prefix that everybody knows

// The errors of such a subprotocol, as in k8s.io/apiserver/pkg/authentication/request/websocket.
var (
	errTwoTokens   = fmt.Errorf("%w: several bearer tokens in the subprotocols", ErrUnauthenticated)
	errEncoding    = fmt.Errorf("%w: the bearer token in the subprotocols is not base64url", ErrUnauthenticated)
	errNotText     = fmt.Errorf("%w: the bearer token in the subprotocols is not UTF-8", ErrUnauthenticated)
	errNoneToSpeak = fmt.Errorf("%w: a bearer token but no other subprotocol", ErrUnauthenticated)
)

// protocolToken returns the token in a WebSocket request's subprotocols; empty without an error if
// there is none.
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
	// The server must select a subprotocol, and must not select the token.
	if token != "" && !others {
		return "", errNoneToSpeak
	}
	return token, nil
}

// CutProtocol removes bearer tokens from one Sec-WebSocket-Protocol value and keeps the others in
// order. It must be applied to each such line, upgrade or not, except over the token pools; drop a
// line that becomes empty. A line without a token is returned unchanged.
func CutProtocol(line string) string {
	if !containsFold(line, bearerProtocol) {
		return line
	}
	var kept []string
	for protocol := range strings.SplitSeq(line, ",") {
		// In any case and position: even if upstream would not accept it as a token, it must not
		// appear in a log.
		if !containsFold(protocol, bearerProtocol) {
			kept = append(kept, strings.TrimSpace(protocol))
		}
	}
	return strings.Join(kept, ",")
}

// containsFold reports whether s contains sub, ignoring case. sub must be in lower case.
func containsFold(s, sub string) bool {
	for i := 0; i+len(sub) <= len(s); i++ {
		if hasPrefix(s[i:], sub) {
			return true
		}
	}
	return false
}
