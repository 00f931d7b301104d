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

// document is one object in all the forms in which it can be asked for. It never changes; a form, and the ETag, is made when it is first asked for.
type document struct {
	write func(s *sheet, media string, pretty bool)
	// hash is what the ETag says. Nil: that of the form in JSON.
	hash func() string
	// pieces are what write leaves out of the form in JSON. Nil: nothing.
	pieces []*text
	// of is the local apiserver's object that it shows. Nil: it shows none.
	of any
	// cache is Cache-Control.
	cache string

	once  sync.Once
	known atomic.Pointer[tag] // nil: nobody has asked yet
	forms [2 * len(medias{})]form
}

// public lets shared caches keep a document, as kube-apiserver lets them keep aggregated discovery and nothing else.
const public, private = "public", "no-cache, private"

// tag is a document's ETag, and what is made of it.
type tag struct {
	etag string
	// unchanged are what clients get who have it already, and do not take gzip, and do.
	unchanged [2]*negotiate.Answer
}

// medias are the media types, by number.
type medias [4]string

func allMedias() medias {
	return medias{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf, runtime.ContentTypeCBOR}
}

// form is a document in one media type.
type form struct {
	once, joinOnce, gzipOnce sync.Once
	body                     body
	// joined is the body in one, and zipped the same in gzip, empty when that is not worth it.
	joined, zipped []byte
	contentType    string
	// answers are what clients get who do not take gzip, and who do. Nil: nobody has asked yet.
	answers [2]atomic.Pointer[negotiate.Answer]
}

// leastZipped is from what size on a body is compressed. It is done once per change, so it may be far below kube-apiserver's 128 KiB; what fits into a few packets
// is not worth anybody's time.
const leastZipped = 4 << 10

// tag returns the ETag, making it if nobody has asked for it yet.
func (d *document) tag() *tag {
	d.once.Do(func() {
		hash := d.hash
		if hash == nil {
			hash = func() string { return negotiate.Hash(d.form(choice{}).plain()) }
		}
		t := &tag{etag: strconv.Quote(hash())}
		for i, gzip := range []bool{false, true} {
			t.unchanged[i] = negotiate.Prepare(http.StatusNotModified, nil, d.common(t.etag, gzip)...)
		}
		d.known.Store(t)
	})
	return d.known.Load()
}

// common are the fields that every answer with the document has.
func (d *document) common(etag string, gzip bool) []hpack.HeaderField {
	return []hpack.HeaderField{
		{Name: "cache-control", Value: d.cache}, {Name: "etag", Value: negotiate.Tag(etag, gzip)}, {Name: "vary", Value: "Accept"}, {Name: "vary", Value: "Accept-Encoding"},
	}
}

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
		text, pieces := bytes.Clone(s.body.Bytes()), d.pieces // without the room that the buffer had grown
		if c.media != 0 || c.pretty {
			pieces = nil
		}
		f.body = newBody(text, pieces)
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
	fields := append(d.common(d.tag().etag, gzip), hpack.HeaderField{Name: "content-type", Value: f.contentType})
	body := f.compressed(gzip)
	if body != nil {
		fields = append(fields, hpack.HeaderField{Name: "content-encoding", Value: "gzip"})
	} else {
		body = f.plain()
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

// plain returns the body in one.
func (f *form) plain() []byte {
	f.joinOnce.Do(func() { f.joined = f.body.join() })
	return f.joined
}

// compressed returns the body in gzip, if that is wanted. Nil: it is not, or the body is too small.
func (f *form) compressed(wanted bool) []byte {
	if !wanted || f.body.size() < leastZipped {
		return nil
	}
	f.gzipOnce.Do(func() { f.zipped = f.body.gzip() })
	return f.zipped
}

// addresses are what the local apiserver says of its own addresses.
type addresses []metav1.ServerAddressByClientCIDR

// ServerAddressByClientCIDRs implements discovery.Addresses.
func (a addresses) ServerAddressByClientCIDRs(net.IP) []metav1.ServerAddressByClientCIDR { return a }
