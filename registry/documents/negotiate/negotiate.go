// Package negotiate reads the two request fields on which the response with a rendered document
// depends: the encodings that the client accepts, and the version that it has. These functions are
// pure, allocate nothing and may be called by any goroutine. An Answer is a rendered response.
// Media types are negotiated by the package of the document.
package negotiate

import (
	"strconv"
	"strings"
)

// TakesGzip reports whether a response may be compressed: lines of Accept-Encoding accept gzip or
// *, and not with weight zero (RFC 9110 §12.5.3).
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

// Tag returns the ETag for clients with or without gzip. As in kube-apiserver, one tag stands for a
// document in several forms, but a strong tag must not stand for two encodings of the same form
// (RFC 9110 §8.8.3): a cache could join the parts of both. So with gzip the tag is weak.
// If-None-Match compares weakly (§13.1.2), and clients send the tag back unchanged.
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

// Matches reports whether lines of If-None-Match match the tag: lists, weak tags (compared weakly)
// and * (RFC 9110 §13.1.2). kube-apiserver compares only the whole field.
func Matches(tag string, lines ...string) bool {
	for _, line := range lines {
		for line = strings.TrimLeft(line, " \t,"); line != ""; line = strings.TrimLeft(line, " \t,") {
			if line[0] == '*' {
				return true
			}
			item := strings.TrimPrefix(line, "W/")
			if item == "" || item[0] != '"' {
				break // no tag: the rest cannot be parsed
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
