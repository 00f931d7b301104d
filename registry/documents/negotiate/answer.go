package negotiate

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// Answer is a complete response that was rendered beforehand. All requests share it, so it is
// immutable.
type Answer struct {
	// Status is the HTTP status.
	Status int
	// Fields are the head: :status, then the fields with names in lower case, fields of one name
	// next to each other. The date is not among them.
	Fields []hpack.HeaderField
	// Body is the content. Nil means that there is none.
	Body []byte
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

// Hash returns the upper-case SHA-512 of a body, which may come in parts. It is the value of
// kube-apiserver's ETags.
func Hash(body ...[]byte) string {
	h := sha512.New()
	for _, part := range body {
		_, _ = h.Write(part) // it never fails
	}
	return strings.ToUpper(hex.EncodeToString(h.Sum(nil)))
}

// Gzip compresses a body.
func Gzip(body []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	// Writing to a bytes.Buffer never fails.
	_, _ = z.Write(body)
	_ = z.Close()
	return bytes.Clone(b.Bytes()) // without the buffer's spare capacity
}
