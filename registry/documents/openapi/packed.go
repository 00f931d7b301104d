package openapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
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
}

func pack(body []byte) *packed {
	return &packed{zipped: negotiate.Gzip(body), size: len(body), hash: negotiate.Hash(body), made: time.Now()}
}

// open returns the uncompressed document.
func (p *packed) open() ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(p.zipped))
	if err != nil {
		return nil, fmt.Errorf("unpacking document: %w", err)
	}
	out := bytes.NewBuffer(make([]byte, 0, p.size+bytes.MinRead))
	if _, err := io.Copy(out, z); err != nil { //nolint:gosec // we compressed it ourselves
		return nil, fmt.Errorf("unpacking document: %w", err)
	}
	return out.Bytes(), nil
}

// serve sends the document. The tag is that of its JSON form, whichever form this is. net/http
// handles conditional requests.
func (p *packed) serve(w http.ResponseWriter, r *http.Request, contentType, hash string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	gzip := negotiate.TakesGzip(r.Header["Accept-Encoding"]...)
	h.Set("Etag", negotiate.Tag(strconv.Quote(hash), gzip))
	h.Add("Vary", "Accept-Encoding")
	body := p.zipped
	if gzip {
		h.Set("Content-Encoding", "gzip")
	} else {
		var err error
		if body, err = p.open(); err != nil {
			w.WriteHeader(http.StatusInternalServerError) // cannot happen: we compressed it ourselves
			return
		}
	}
	http.ServeContent(w, r, "", p.made, bytes.NewReader(body))
}
