package discovery

import (
	"bytes"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2/hpack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// document is one object in all the forms in which it can be asked for. It never changes; a form is rendered when it is first asked for.
type document struct {
	write func(s *sheet, media string, pretty bool)
	etag  string
	// cache is Cache-Control: public lets shared caches keep it, as kube-apiserver lets them keep aggregated discovery and nothing else.
	cache string
	// unchanged are what clients get who have it already, and do not take gzip, and do.
	unchanged [2]*negotiate.Answer
	forms     [2 * len(medias{})]form
}

// medias are the media types, by number.
type medias [4]string

func allMedias() medias {
	return medias{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf, runtime.ContentTypeCBOR}
}

// form is a document in one media type.
type form struct {
	once, gzipOnce sync.Once
	// plain is the body and zipped the same in gzip, empty when that is not worth it.
	plain, zipped []byte
	contentType   string
	// answers are what clients get who do not take gzip, and who do. Nil: nobody has asked yet.
	answers [2]atomic.Pointer[negotiate.Answer]
}

// leastZipped is from what size on a body is compressed. It is done once per change, so it may be far below kube-apiserver's 128 KiB; what fits into a few packets
// is not worth anybody's time.
const leastZipped = 4 << 10

// newDocument makes a document and renders its JSON form, of which the ETag is made; marshalled is what to make it of instead. Nil: of that form.
func newDocument(write func(*sheet, string, bool), marshalled []byte, public bool) *document {
	d := &document{write: write, cache: "no-cache, private"}
	if public {
		d.cache = "public"
	}
	body := d.form(choice{media: 0}).plain
	if marshalled != nil {
		body = marshalled
	}
	d.etag = tagOf(body)
	for i, gzip := range []bool{false, true} {
		d.unchanged[i] = negotiate.Prepare(http.StatusNotModified, nil, d.common(gzip)...)
	}
	return d
}

// common are the fields that every answer with the document has.
func (d *document) common(gzip bool) []hpack.HeaderField {
	return []hpack.HeaderField{
		{Name: "cache-control", Value: d.cache}, {Name: "etag", Value: negotiate.Tag(d.etag, gzip)}, {Name: "vary", Value: "Accept"}, {Name: "vary", Value: "Accept-Encoding"},
	}
}

// tagOf is the ETag of a body.
func tagOf(body []byte) string { return strconv.Quote(negotiate.Hash(body)) }

// at is where a form is kept.
func (d *document) at(c choice) *form {
	i := 2 * c.media
	if c.pretty {
		i++
	}
	return &d.forms[i]
}

// form returns a form, rendering it if nobody has asked for it yet.
func (d *document) form(c choice) *form {
	f := d.at(c)
	f.once.Do(func() {
		s := &sheet{header: make(http.Header, 2)}
		d.write(s, allMedias()[c.media], c.pretty)
		f.plain = bytes.Clone(s.body.Bytes()) // without the room that the buffer had grown
		f.contentType = s.header.Get("Content-Type")
	})
	return f
}

// answer returns the answer with a form, making it if nobody has asked for it yet.
func (d *document) answer(c choice, gzip bool) *negotiate.Answer {
	f := d.form(c)
	known := f.known(gzip)
	if a := known.Load(); a != nil {
		return a
	}
	fields := append(d.common(gzip), hpack.HeaderField{Name: "content-type", Value: f.contentType})
	body := f.plain
	if zipped := f.compressed(gzip); zipped != nil {
		body = zipped
		fields = append(fields, hpack.HeaderField{Name: "content-encoding", Value: "gzip"})
	}
	a := negotiate.Prepare(http.StatusOK, body, fields...)
	known.Store(a)
	return a
}

// known is where an answer with the form is kept.
func (f *form) known(gzip bool) *atomic.Pointer[negotiate.Answer] {
	return &f.answers[at(gzip)]
}

// at is where that stands which depends on whether a client takes gzip.
func at(gzip bool) int {
	if gzip {
		return 1
	}
	return 0
}

// compressed returns the body in gzip, if that is wanted. Empty: it is not, or the body is too small.
func (f *form) compressed(wanted bool) []byte {
	if !wanted || len(f.plain) < leastZipped {
		return nil
	}
	f.gzipOnce.Do(func() { f.zipped = negotiate.Gzip(f.plain) })
	return f.zipped
}

// addresses are what the local apiserver says of its own addresses.
type addresses []metav1.ServerAddressByClientCIDR

// ServerAddressByClientCIDRs implements discovery.Addresses.
func (a addresses) ServerAddressByClientCIDRs(net.IP) []metav1.ServerAddressByClientCIDR { return a }
