package tokens

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/fairlead-proxy/fairlead/tests/issuer"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// jwt is a token as far as Issued looks.
func jwt(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

// A token that says that it is of an issuer of ours is judged here, whatever else it says; of all
// others nothing is known.
func TestIssued(t *testing.T) {
	i := issuer.Start(t)
	k := New(Config{})
	if k.Issued(i.Token(t, nil)) {
		t.Error("an issuer counts before there is a configuration")
	}
	before := k.Generation()
	if err := k.TakeConfig([]byte(i.Config("oidc:"))); err != nil || k.Generation() == before {
		t.Fatalf("%v, generation %d", err, k.Generation())
	}
	url := must.Get(json.Marshal(i.URL))(t)
	for _, tc := range []struct {
		name, token string
		want        bool
	}{
		{"good", i.Token(t, nil), true},
		{"another audience", i.Token(t, map[string]any{"aud": "elsewhere"}), true},
		{"expired, unsigned", jwt(`{"iss":` + string(url) + `,"exp":1}`), true},
		{"escaped", jwt(`{"iss":` + strings.ReplaceAll(string(url), "/", `\/`) + `}`), true},
		{"the last one counts", jwt(`{"iss":"https://elsewhere","iss":` + string(url) + `}`), true},
		{"the first one does not", jwt(`{"iss":` + string(url) + `,"iss":"https://elsewhere"}`), false},
		{"as upstream reads it", jwt(`{"ISS":` + string(url) + `}`), true},
		{"a slash more", jwt(`{"iss":"` + i.URL + `/"}`), false},
		{"elsewhere", jwt(`{"iss":"https://kubernetes.default.svc.cluster.local"}`), false},
		{"no text", jwt(`{"iss":7}`), false},
		{"no JSON", jwt(`{`), false},
		{"no JWT", "alice-token", false},
		{"two dots too many", jwt(`{"iss":`+string(url)+`}`) + "..", false},
		{"padded", strings.Replace(jwt(`{"iss":`+string(url)+` }`), ".c2ln", "=.c2ln", 1), false},
		{"nothing", "", false},
	} {
		if got := k.Issued(tc.token); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		if tc.want {
			continue
		}
		// What is not ours is nobody's in the issuers' eyes, too: it is left to the cluster.
		if r, ok, err := authenticator.TokenFunc(k.Review).AuthenticateToken(t.Context(), tc.token); ok || err != nil {
			t.Errorf("%s: %v %v", tc.name, r, err)
		}
	}
	must.Do(t, k.TakeConfig([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n")))
	if k.Issued(i.Token(t, nil)) {
		t.Error("an issuer that was taken out still counts")
	}
}

func BenchmarkIssued(b *testing.B) {
	k := New(Config{})
	urls := map[string]bool{"https://issuer.example.com": true}
	k.urls.Store(&urls)
	for name, token := range map[string]string{
		"usual":    jwt(`{"iss":"https://issuer.example.com","sub":"` + strings.Repeat("x", 700) + `"}`),
		"elements": jwt(`{"x":[` + strings.Repeat("1,", 4500) + `1]}`),
		"nested":   jwt(strings.Repeat(`{"x":`, 2000) + `1` + strings.Repeat("}", 2000)),
		"opaque":   strings.Repeat("x", 900),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				k.Issued(token)
			}
		})
	}
}
