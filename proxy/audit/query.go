package audit

import (
	"net/url"
	"strings"
)

// masked replaces a secret value.
const masked = "MASKED"

// Mask replaces the values of a raw query's parameters whose names suggest a secret, such as a
// token, a password or a signature. Everything else stays, byte for byte. kube-apiserver logs the
// whole query, but extension servers and proxied Services may have parameters of any meaning.
func Mask(rawQuery string) string {
	var b strings.Builder
	for rest := rawQuery; rest != ""; {
		// Some servers treat a semicolon like an ampersand.
		end := strings.IndexAny(rest, "&;")
		pair, separator := rest, ""
		if rest = ""; end >= 0 {
			pair, separator, rest = pair[:end], pair[end:end+1], pair[end+1:]
		}
		name, value, has := strings.Cut(pair, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil {
			plain = name
		}
		if has && value != "" && secret(strings.ToLower(plain)) {
			pair = name + "=" + masked
		}
		b.WriteString(pair)
		b.WriteString(separator)
	}
	return b.String()
}

// secret reports whether a name in lower case suggests a secret. The names are those of Kubernetes,
// OAuth 2 and the signed URLs of object stores.
func secret(name string) bool {
	for _, word := range []string{"token", "passw", "secret", "credential", "authorization", "bearer", "signature", "apikey", "api_key", "api-key", "assertion", "jwt"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return name == "sig" || name == "code" || name == "key"
}
