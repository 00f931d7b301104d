// Package negotiate reads the two request fields on which an answer from a rendered document depends: which encodings the client takes, and which state it has already.
// These functions are pure, allocate nothing and may be called by any goroutine. An Answer is what was rendered. It is not for media types: those are the business of the package whose document it is.
package negotiate

import (
	"strconv"
	"strings"
)

// TakesGzip reports whether a response may be compressed: lines of Accept-Encoding accept gzip or *, and not with weight zero (RFC 9110 §12.5.3).
func TakesGzip(lines ...string) bool {
	takes, named := false, false
	for _, line := range lines {
		for line != "" {
			var item string
			item, line, _ = strings.Cut(line, ",")
			name, weight, _ := strings.Cut(item, ";")
			name = strings.TrimSpace(name)
			gzip := strings.EqualFold(name, "gzip")
			if !gzip && name != "*" || named && !gzip {
				continue
			}
			takes, named = !isZero(weight), named || gzip
		}
	}
	return takes
}

// Tag is the tag of what is sent to a client that takes gzip, or does not. One tag stands for a
// document in several forms, as at kube-apiserver, but a strong one must not stand for two encodings
// of the same form (RFC 9110 §8.8.3): a cache could join the pieces of both. So it is weak where gzip
// is taken. If-None-Match compares weakly (§13.1.2), and clients send it back as it is.
func Tag(strong string, gzip bool) string {
	if gzip {
		return "W/" + strong
	}
	return strong
}

func isZero(weight string) bool {
	name, value, _ := strings.Cut(strings.TrimSpace(weight), "=")
	if !strings.EqualFold(strings.TrimSpace(name), "q") {
		return false
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	return err == nil && q == 0
}

// Matches reports whether lines of If-None-Match name the tag: lists, weak tags (compared weakly) and * (RFC 9110 §13.1.2). kube-apiserver compares the whole field only.
func Matches(tag string, lines ...string) bool {
	for _, line := range lines {
		for line = strings.TrimLeft(line, " \t,"); line != ""; line = strings.TrimLeft(line, " \t,") {
			if line[0] == '*' {
				return true
			}
			item := strings.TrimPrefix(line, "W/")
			if item == "" || item[0] != '"' {
				break // no tag: what follows cannot be told apart
			}
			end := strings.IndexByte(item[1:], '"')
			if end < 0 {
				break
			}
			if item[:end+2] == tag {
				return true
			}
			line = item[end+2:]
		}
	}
	return false
}
