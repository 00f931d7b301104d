// Package issuer is an OpenID provider for tests: it serves its discovery document and one key over
// TLS, and signs any claims, by RS512: kube-apiserver accepts it, other than OpenID's default.
package issuer

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Issuer is an OpenID provider with one key.
type Issuer struct {
	*httptest.Server
	key *rsa.PrivateKey
}

// Start serves until the test ends.
func Start(t testing.TB) *Issuer {
	t.Helper()
	key := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	i := &Issuer{key: key}
	mux := http.NewServeMux()
	answer := func(path string, v func() any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(v()); err != nil {
				t.Error(err)
			}
		})
	}
	answer("/.well-known/openid-configuration", func() any {
		return map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS512"}}
	})
	answer("/keys", func() any {
		e := big.NewInt(int64(key.E)).Bytes()
		return map[string]any{"keys": []any{map[string]string{
			"kty": "RSA", "alg": "RS512", "use": "sig", "kid": "one", "n": encode(key.N.Bytes()), "e": encode(e),
		}}}
	})
	i.Server = httptest.NewTLSServer(mux)
	t.Cleanup(i.Close)
	return i
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Config returns an AuthenticationConfiguration that trusts the issuer.
func (i *Issuer) Config(prefix string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
	return fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: %s
    audiences: [fairlead]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: %q}
    groups: {expression: "claims.admin == 'yes' ? ['admins'] : ['readers']"}
  claimValidationRules:
  - expression: "claims.exp - claims.iat <= 86400"
    message: too long
`, i.URL, strings.ReplaceAll(strings.TrimSpace(string(ca)), "\n", "\n      "), prefix)
}

// Token signs claims, added to valid defaults. A nil value removes a default.
func (i *Issuer) Token(t testing.TB, claims map[string]any) string {
	t.Helper()
	now := time.Now()
	all := map[string]any{"iss": i.URL, "aud": "fairlead", "sub": "jane", "admin": "no", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
	for k, v := range claims {
		if all[k] = v; v == nil {
			delete(all, k)
		}
	}
	text := encode([]byte(`{"alg":"RS512","kid":"one","typ":"JWT"}`)) + "." + encode(must.Get(json.Marshal(all))(t))
	sum := sha512.Sum512([]byte(text))
	return text + "." + encode(must.Get(rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA512, sum[:]))(t))
}
