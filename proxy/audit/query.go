package audit

import (
	"net/url"
	"strings"
)

// requestURI is the request's target without what must not be in a log.
func requestURI(path, rawQuery string) string {
	if rawQuery == "" {
		return path
	}
	return path + "?" + Mask(rawQuery)
}

// masked stands for a value that was left out.
const masked = "MASKED"

// Mask replaces the values of a raw query's parameters whose names say that they hold a secret: a token, a password, a signature. Everything else stays, byte
// for byte. kube-apiserver writes the whole query down; but extension servers and proxied Services are anybody's, and so are their parameters.
func Mask(rawQuery string) string {
	var b strings.Builder
	for rest := rawQuery; rest != ""; {
		// Some servers take a semicolon for an ampersand.
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

// secret reports whether a lower-case name is one that secrets have. The names are those that Kubernetes, OAuth 2 and the signed URLs of object stores use.
func secret(name string) bool {
	for _, word := range []string{"token", "passw", "secret", "credential", "authorization", "bearer", "signature", "apikey", "api_key", "api-key", "assertion", "jwt"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return name == "sig" || name == "code" || name == "key"
}
