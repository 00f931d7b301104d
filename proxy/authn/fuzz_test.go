package authn

import (
	"crypto/x509/pkix"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"
)

// FuzzRead feeds foreign Authorization, subprotocol, and front-proxy fields to us and to upstream's
// authenticators.
func FuzzRead(f *testing.F) {
	front := newAuthority(f, "front-ca")
	s := setup{front: front, names: []string{"front-proxy-client"}}
	conn := &Conn{Peer: front.issue(pkix.Name{CommonName: "front-proxy-client"}, time.Hour)}
	for _, seed := range [][5]string{
		{"Bearer good", protocolOf("good-ws") + ",x", "", "scopes%2fall", "a"},
		{"bearer  good", bearerProtocol + "=", "bob", "%zz", ""},
		{"\u2003Bearer good", " " + protocolOf("good") + " , ,", " bob", "%", "v"},
		{"Bearer\tgood", protocolOf("good") + "," + protocolOf("good"), "system:anonymous", "A_b", "\x80"},
		{"Bearer good\x00", protocolOf("\xff") + ",x", "", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, authorization, protocol, name, key, value string) {
		key = "X-Remote-Extra-" + key
		if !httpguts.ValidHeaderFieldName(key) {
			return
		}
		for _, v := range []string{authorization, protocol, name, value} {
			if !httpguts.ValidHeaderFieldValue(v) {
				return // refused by every HTTP parser before it gets here
			}
		}
		h := http.Header{"X-Remote-User": {name}, http.CanonicalHeaderKey(key): {value}}
		up := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
		review := &tokens{}
		r := request(conn.Peer, h, up, []string{authorization}, []string{protocol})
		compare(t, s.ours(t, review), s.upstream(tokenFunc(review.review)), conn, r, "fuzz")
	})
}

// FuzzCutProtocol: no token is left, nothing else is lost, and what upstream would read as the
// token is what is gone.
func FuzzCutProtocol(f *testing.F) {
	f.Add("a, " + protocolOf("good") + " ,b")
	f.Add(strings.ToUpper(protocolOf("good")))
	f.Add("a,b")
	f.Add(",,")
	f.Fuzz(func(t *testing.T, line string) {
		got := CutProtocol(line)
		if strings.Contains(strings.ToLower(got), bearerProtocol) {
			t.Errorf("%q still holds a token", got)
		}
		if CutProtocol(got) != got {
			t.Errorf("%q changes when it is cut again", got)
		}
		var want []string
		for p := range strings.SplitSeq(line, ",") {
			if !containsFold(p, bearerProtocol) {
				want = append(want, strings.TrimSpace(p))
			}
		}
		if strings.ReplaceAll(strings.Join(want, ","), " ", "") != strings.ReplaceAll(trimEach(got), " ", "") {
			t.Errorf("%q became %q", line, got)
		}
	})
}

func trimEach(line string) string {
	var out []string
	for p := range strings.SplitSeq(line, ",") {
		out = append(out, strings.TrimSpace(p))
	}
	if line == "" {
		return ""
	}
	return strings.Join(out, ",")
}
