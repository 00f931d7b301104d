package openapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// packed is a compressed document: OpenAPI shrinks to a tenth, and nearly every client accepts it
// compressed.
type packed struct {
	zipped []byte
	size   int
	hash   string // upper-case SHA-512 of the document, as in kube-openapi's hashes and ETags
	made   time.Time
	// onlyJSON says that the v2 document of a backend has no protobuf form.
	onlyJSON bool
	leftOut  sync.Once // logs why it cannot be merged
}

func pack(body []byte) *packed {
	return &packed{zipped: negotiate.Gzip(body), size: len(body), hash: negotiate.Hash(body), made: time.Now()}
}

// open returns the uncompressed document.
func (p *packed) open() ([]byte, error) {
	out := make([]byte, p.size)
	_, err := io.ReadFull(&plain{of: p}, out)
	return out, err //nolint:wrapcheck // an error of this package
}

// plain unpacks a document while it is read. A client that does not read its response keeps some 40
// KB of it, not all.
type plain struct {
	of *packed
	z  *gzip.Reader // nil before the first Read
}

// Read implements io.Reader.
func (p *plain) Read(b []byte) (n int, err error) {
	if p.z == nil {
		if p.z, err = gzip.NewReader(bytes.NewReader(p.of.zipped)); err != nil {
			return 0, fmt.Errorf("unpacking document: %w", err)
		}
	}
	return p.z.Read(b) //nolint:wrapcheck // io.EOF must stay io.EOF
}

// Seek implements io.Seeker as http.ServeContent needs it without ranges: for the size.
func (p *plain) Seek(_ int64, whence int) (int64, error) {
	if whence == io.SeekEnd {
		return int64(p.of.size), nil
	}
	return 0, nil
}

// serve sends the document. The tag is that of its JSON form, whichever form this is. net/http
// handles conditional requests.
func (p *packed) serve(w http.ResponseWriter, r *http.Request, contentType, hash string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	gzip := negotiate.TakesGzip(r.Header["Accept-Encoding"]...)
	h.Set("Etag", negotiate.Tag(strconv.Quote(hash), gzip))
	h.Add("Vary", "Accept-Encoding")
	if gzip {
		h.Set("Content-Encoding", "gzip")
		http.ServeContent(w, r, "", p.made, bytes.NewReader(p.zipped))
		return
	}
	r = r.Clone(r.Context())
	r.Header.Del("Range") // each would be unpacked from the beginning
	http.ServeContent(w, r, "", p.made, &plain{of: p})
}
