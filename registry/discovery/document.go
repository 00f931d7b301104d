package discovery

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/hex"
	"net"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// document is one object in all the forms in which it can be asked for. It never changes; a form is rendered when it is first asked for.
type document struct {
	write  func(s *sheet, media string, pretty bool)
	etag   string
	header fields
	// public lets shared caches keep it, as kube-apiserver lets them keep aggregated discovery and nothing else.
	public bool
	forms  [2 * len(medias{})]form
}

// medias are the media types, by number.
type medias [4]string

func allMedias() medias {
	return medias{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf, runtime.ContentTypeCBOR}
}

// fields are header values that all responses with a document share, so that a response makes none.
type fields struct{ etag, vary, varyEncoding, cache []string }

// form is a document in one media type.
type form struct {
	once, gzipOnce sync.Once
	// plain is the body and zipped the same in gzip, empty when that is not worth it.
	plain, zipped          []byte
	contentType            []string
	plainLength, zipLength []string
	gzipEncodings          []string
}

// leastZipped is from what size on a body is compressed. It is done once per change, so it may be far below kube-apiserver's 128 KiB; what fits into a few packets
// is not worth anybody's time.
const leastZipped = 4 << 10

// newDocument makes a document and renders its JSON form, of which the ETag is made; marshalled is what to make it of instead. Nil: of that form.
func newDocument(write func(*sheet, string, bool), marshalled []byte, public bool) *document {
	d := &document{write: write, public: public}
	body := d.form(choice{media: 0}).plain
	if marshalled != nil {
		body = marshalled
	}
	d.etag = tagOf(body)
	d.header = fields{etag: []string{d.etag}, vary: []string{"Accept"}, varyEncoding: []string{"Accept", "Accept-Encoding"}, cache: []string{"no-cache, private"}}
	if public {
		d.header.cache = []string{"public"}
	}
	return d
}

// tagOf is the quoted, upper-case SHA-512 of a body, as kube-apiserver makes its ETags.
func tagOf(body []byte) string {
	sum := sha512.Sum512(body)
	return strconv.Quote(strings.ToUpper(hex.EncodeToString(sum[:])))
}

// form returns a form, rendering it if nobody has asked for it yet.
func (d *document) form(c choice) *form {
	i := 2 * c.media
	if c.pretty {
		i++
	}
	f := &d.forms[i]
	f.once.Do(func() {
		s := &sheet{header: make(map[string][]string, 2)}
		d.write(s, allMedias()[c.media], c.pretty)
		f.plain = bytes.Clone(s.body.Bytes()) // without the room that the buffer had grown
		f.contentType = s.header["Content-Type"]
		f.plainLength = []string{strconv.Itoa(len(f.plain))}
	})
	return f
}

// compressed returns the body in gzip. Empty: it is too small.
func (f *form) compressed() []byte {
	if len(f.plain) < leastZipped {
		return nil
	}
	f.gzipOnce.Do(func() {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		// A bytes.Buffer takes everything.
		_, _ = z.Write(f.plain)
		_ = z.Close()
		f.zipped = bytes.Clone(b.Bytes())
		f.zipLength = []string{strconv.Itoa(len(f.zipped))}
		f.gzipEncodings = []string{"gzip"}
	})
	return f.zipped
}

// addresses are what the local apiserver says of its own addresses.
type addresses []metav1.ServerAddressByClientCIDR

// ServerAddressByClientCIDRs implements discovery.Addresses.
func (a addresses) ServerAddressByClientCIDRs(net.IP) []metav1.ServerAddressByClientCIDR { return a }
