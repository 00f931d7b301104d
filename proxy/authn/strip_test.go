package authn

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// With the cluster's CA of front proxies go its fields: a proxy that follows the ConfigMap strips no others.
func TestReadTarget(t *testing.T) {
	frontCA := newAuthority("front-ca")
	names := HeaderNames{Username: []string{"X-Remote-User"}, UID: []string{"X-Id"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-More-"}}
	a := newAuthenticator(t, Config{VerifyFrontProxy: frontCA.verify(), ReadTarget: true, Target: func() (*HeaderNames, bool) { return &names, true }})
	h := head("x-remote-user", "jane", "x-id", "1", "x-remote-group", "g", "x-more-scopes", "few", "x-remote-extra-scopes", "all")
	c := read(a, &Conn{Peer: frontCA.issue(pki.Leaf{CommonName: "front-proxy-client"}, time.Hour)}, h, "")
	check.Same(t, `jane/1["g" "system:authenticated"]map[scopes:[few]]`, describe(c.User), "user")
}

// A configured name is stripped in every spelling, including that of its first byte.
func TestStrip(t *testing.T) {
	a := newAuthenticator(t, Config{RequestHeaders: HeaderNames{
		Username: []string{"My_User", "-user"}, UID: []string{"8id"}, Group: []string{"7group"}, ExtraPrefix: []string{"Zz-", "zone-"},
	}})
	always := "x-remote-user X-REMOTE-USER x_remote_user X-Remote_Group x-remote- x-remote-extra- x_remote_extra_a my-user MY_USER zz- zz_key Zz-Key " +
		"proxy-authorization proxy_authorization -user _user 7group 7Group 8ID Zone_x zone-"
	secret := "authorization Authorization AUTHORIZATION"
	remote := "impersonate-user Impersonate-Extra-A impersonate_group impersonate- sec_websocket_protocol sec-websocket_protocol"
	never := "x x-remote xx-remote-user x-remoteuser my-users my z zz accept sec-websocket-protocol some_header_of_22_byte if-none-match authorization-x " +
		"impersonate cookie x-forwarded-for :path \xff user - -users 7grou 7groups 8ids zone"
	for p := PoolRemote; p <= PoolImpersonate; p++ {
		asserted := p == PoolRemote || p == PoolImpersonate
		for names, want := range map[string]bool{always: true, secret: asserted || p == PoolCertificate, remote: asserted, never: false, "": false} {
			for n := range strings.SplitSeq(names, " ") {
				check.Same(t, want, a.Strip(n, p), "pool %d: Strip(%q)", p, n)
			}
		}
	}
}

func headOf(from http.Header) (h Head) {
	for name, values := range from {
		for _, v := range values {
			h = append(h, hpack.HeaderField{Name: strings.ToLower(name), Value: v})
		}
	}
	return h
}
