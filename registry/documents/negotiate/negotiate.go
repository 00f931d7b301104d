// Package negotiate reads the two request fields on which the response with a rendered document depends: the encodings
// that the client accepts, and the version that it has. These functions are pure, allocate nothing and may be called by
// any goroutine. An Answer is a rendered response. Media types are negotiated by the package of the document.
package negotiate

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// TakesGzip reports whether lines of Accept-Encoding name gzip, not with weight zero (RFC 9110 §12.5.3). As in
// kube-apiserver, * does not: who sends it may read no coding, and nobody else has a use for it.
func TakesGzip(lines ...string) bool {
	for _, line := range lines {
		for item := range strings.SplitSeq(line, ",") {
			name, weight, _ := strings.Cut(item, ";")
			rest, zero := strings.CutPrefix(strings.TrimLeft(weight, " \tqQ"), "=0")
			if strings.EqualFold(strings.TrimSpace(name), "gzip") && (!zero || strings.Trim(rest, ". \t0") != "") {
				return true
			}
		}
	}
	return false
}

// Tag returns the ETag for clients with or without gzip. As in kube-apiserver, one tag stands for a document in several
// forms, but a strong tag must not stand for two encodings of the same form (RFC 9110 §8.8.3): a cache could join the
// parts of both. So with gzip the tag is weak. If-None-Match compares weakly (§13.1.2), and clients send it back.
func Tag(strong string, gzip bool) string {
	if gzip {
		return "W/" + strong
	}
	return strong
}

// Matches reports whether lines of If-None-Match match the tag: lists, weak tags (compared weakly), and * alone, which
// may also be in a tag (RFC 9110 §13.1.2). kube-apiserver compares only the whole field. The tag must have no comma.
func Matches(tag string, lines ...string) bool {
	for _, line := range lines {
		for item := range strings.SplitSeq(line, ",") {
			if line == "*" || strings.TrimPrefix(strings.Trim(item, " \t"), "W/") == tag {
				return true
			}
		}
	}
	return false
}

// Answer is a complete response that was rendered beforehand. All requests share it, so it is immutable.
type Answer struct {
	Status int // the HTTP status
	// Fields are the head: :status, then fields by lower-case name, those of one name in a row; the date is not there.
	Fields []hpack.HeaderField
	Body   []byte // the content. Nil means that there is none
}

// Prepare makes an answer of fields and content, and adds the content's length.
func Prepare(status int, body []byte, fields ...hpack.HeaderField) *Answer {
	a := &Answer{Status: status, Body: body, Fields: make([]hpack.HeaderField, 0, len(fields)+2)}
	a.Fields = append(append(a.Fields, hpack.HeaderField{Name: ":status", Value: strconv.Itoa(status)}), fields...)
	if body != nil {
		a.Fields = append(a.Fields, hpack.HeaderField{Name: "content-length", Value: strconv.Itoa(len(body))})
	}
	return a
}

// Write sends the answer to a request of net/http.
func (a *Answer) Write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	values := make([]string, len(a.Fields)) // one allocation for all
	for i, first := 1, 1; i < len(a.Fields); i++ {
		f := &a.Fields[i]
		if f.Name != a.Fields[i-1].Name {
			first = i
		}
		values[i] = f.Value
		h[http.CanonicalHeaderKey(f.Name)] = values[first : i+1 : i+1]
	}
	w.WriteHeader(a.Status)
	if a.Body != nil && r.Method != http.MethodHead {
		_, _ = w.Write(a.Body) // the client may have gone
	}
}

// Hash returns the upper-case SHA-512 of a body, the value of kube-apiserver's ETags.
func Hash(body []byte) string { return fmt.Sprintf("%X", sha512.Sum512(body)) }

// Gzip compresses a body.
func Gzip(body []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(body) // writing to a bytes.Buffer never fails
	_ = z.Close()
	return bytes.Clone(b.Bytes()) // without the buffer's spare capacity
}
