package proxy

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// identityFields are what a backend learns about the caller.
func identityFields(h http.Header) map[string][]string {
	out := map[string][]string{}
	for name, values := range h {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, "x-remote") || strings.HasPrefix(lower, "x_remote") || lower == "authorization" || lower == "proxy-authorization" || strings.HasPrefix(lower, "impersonate") {
			out[lower] = values
		}
	}
	return out
}

// ignoreCredentialID leaves out the certificate's digest, which differs from run to run.
func ignoreCredentialID() cmp.Option {
	return cmpopts.IgnoreMapEntries(func(name string, _ []string) bool { return strings.HasPrefix(name, "x-remote-extra-authentication") })
}

func TestIdentity(t *testing.T) {
	w := newWorld(t, worldConfig{})
	alice := w.client.Issue(pki.Leaf{CommonName: "alice", Organizations: []string{"dev"}})
	foreign := pki.NewCA("elsewhere").Issue(pki.Leaf{CommonName: "mallory"})
	front := w.authorities.front.Issue(pki.Leaf{CommonName: "outer-proxy"})
	aliceIs := map[string][]string{"x-remote-user": {"alice"}, "x-remote-group": {"dev", "system:authenticated"}}
	bobIs := map[string][]string{
		"x-remote-user": {"bob"}, "x-remote-uid": {"uid-bob"}, "x-remote-group": {"people", "system:authenticated"}, "x-remote-extra-scope": {"all"},
	}
	carolIs := map[string][]string{"x-remote-user": {"carol"}, "x-remote-group": {"ops", "system:authenticated"}}
	token := func(v string) http.Header { return http.Header{"Authorization": {v}} }
	for _, tc := range []struct {
		name                    string
		pair                    *pki.Pair
		header                  http.Header
		remote, local           map[string][]string
		remoteStatus, localCode int
		localPeer               string
	}{
		{"certificate", alice, nil, aliceIs, aliceIs, 200, 200, "front-proxy-client"},
		{"token", nil, token("Bearer token-of-bob"), bobIs, map[string][]string{"authorization": {"Bearer token-of-bob"}}, 200, 200, ""},
		{"bad token", nil, token("Bearer nonsense"), nil, map[string][]string{"authorization": {"Bearer nonsense"}}, 401, 200, ""},
		{"front proxy", front, http.Header{"X-Remote-User": {"carol"}, "X-Remote-Group": {"ops"}}, carolIs, carolIs, 200, 200, "front-proxy-client"},
		{"nothing", nil, nil, nil, map[string][]string{}, 401, 200, ""},
		{"other scheme", nil, token("Basic Zm9vOmJhcg=="), nil, map[string][]string{"authorization": {"Basic Zm9vOmJhcg=="}}, 401, 200, ""},
		{"certificate and token", alice, token("Bearer token-of-bob"), aliceIs, aliceIs, 200, 200, "front-proxy-client"},
		{"foreign certificate", foreign, nil, nil, nil, 401, 401, ""},
		{"foreign certificate, good token", foreign, token("Bearer token-of-bob"), bobIs, map[string][]string{"authorization": {"Bearer token-of-bob"}}, 200, 200, ""},
		{"front proxy without user", front, nil, nil, nil, 401, 401, ""},
		{"denied user", nil, token("Bearer token-of-nobody"), nil, map[string][]string{"authorization": {"Bearer token-of-nobody"}}, 403, 200, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, proto string) {
				for _, side := range []struct {
					far        *far
					path, peer string
					status     int
					want       map[string][]string
				}{
					{w.remote, remoteGV + "/widgets", "front-proxy-client", tc.remoteStatus, tc.remote},
					{w.local, "/api/v1/pods", tc.localPeer, tc.localCode, tc.local},
				} {
					before := side.far.count()
					r := w.request(t, "GET", side.path, nil)
					maps.Copy(r.Header, tc.header)
					got := w.do(t, w.httpClient(t, proto, tc.pair), r)
					if got.status != side.status {
						t.Fatalf("%s: status %d, want %d: %s", side.path, got.status, side.status, got.body)
					}
					if side.status != 200 {
						if n := side.far.count() - before; n != 0 {
							t.Fatalf("%s: a refused request reached the backend", side.path)
						}
						continue
					}
					in := side.far.last(t)
					have := identityFields(in.header)
					if diff := cmp.Diff(side.want, have, ignoreCredentialID()); diff != "" {
						t.Errorf("%s (-want +got):\n%s", side.path, diff)
					}
					if in.peer != side.peer {
						t.Errorf("%s: came with the certificate of %q, want %q", side.path, in.peer, side.peer)
					}
				}
			})
		})
	}
}
