package discovery

import (
	"bytes"
	"cmp"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/util/responsewriter"

	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// document is one object in all its forms. It never changes. Each form, and the ETag, is made on first request.
type document struct {
	write  http.HandlerFunc // writes the form that a request asks for: a media type, with params
	params string
	hash   func() string // returns the value of the ETag. Nil means the hash of the JSON form
	of     any           // the local apiserver's object that it shows. Nil means none
	cache  string        // the value of Cache-Control

	once  sync.Once
	known atomic.Pointer[tag] // nil before the first request
	forms [len(media{})][2]form
}

// public lets shared caches keep a document. As in kube-apiserver, only aggregated discovery is public.
const public, private = "public", "no-cache, private"

// tag is a document's ETag, with the responses made from it.
type tag struct {
	etag string
	// unchanged are the responses for clients that have this version: without gzip, and with.
	unchanged [2]*negotiate.Answer
}

type media [3]string

func allMedias() media {
	return media{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf}
}

type form struct {
	once        sync.Once
	body        []byte
	contentType string
	answers     [2]struct { // the responses without gzip, and with. Nil means not requested yet
		once sync.Once
		made atomic.Pointer[negotiate.Answer]
	}
}

func (d *document) tag() *tag {
	d.once.Do(func() {
		hash := d.hash
		if hash == nil {
			hash = func() string { return negotiate.Hash(d.form(choice{}).body) }
		}
		t := &tag{etag: strconv.Quote(hash())}
		for i, gzip := range []bool{false, true} {
			t.unchanged[i] = negotiate.Prepare(http.StatusNotModified, nil, d.common(t.etag, gzip)...)
		}
		d.known.Store(t)
	})
	return d.known.Load()
}

func (d *document) common(etag string, gzip bool) []hpack.HeaderField {
	return []hpack.HeaderField{
		{Name: "cache-control", Value: d.cache},
		{Name: "etag", Value: negotiate.Tag(etag, gzip)},
		{Name: "vary", Value: "Accept"},
		{Name: "vary", Value: "Accept-Encoding"},
	}
}

func (d *document) at(c choice) *form { return &d.forms[c.media][at(c.pretty)] }

func (d *document) form(c choice) *form {
	f := d.at(c)
	f.once.Do(func() {
		accept := allMedias()[c.media] + d.params
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{}, Header: http.Header{"Accept": {accept}}}
		if c.pretty {
			r.URL.RawQuery = "pretty=true"
		}
		w := responsewriter.NewInMemoryResponseWriter()
		d.write(w, r)
		f.body = bytes.Clone(w.Data()) // without the buffer's spare capacity
		f.contentType = w.Header().Get("Content-Type")
	})
	return f
}

// made returns the response to a request that chose a form, with the query, User-Agent and lines of
// Accept-Encoding and If-None-Match, if it was made before. It says which one is to be made if not.
func (d *document) made(c choice, query, agent string,
	encodings, tags []string) (a *negotiate.Answer, form choice, gzip bool) {
	gzip = negotiate.TakesGzip(encodings...)
	c.pretty = c.media == 0 && (c.pretty || wantsPretty(query, agent))
	if known := d.known.Load(); known != nil && negotiate.Matches(known.etag, tags...) {
		return known.unchanged[at(gzip)], c, gzip
	}
	return d.at(c).answers[at(gzip)].made.Load(), c, gzip
}

func (d *document) answer(c choice, gzip bool) *negotiate.Answer {
	// leastZipped is the size from which a body is compressed. That is done once per change, so it may
	// be far below kube-apiserver's 128 KiB. Compressing a body of a few packets is not worth the time.
	const leastZipped = 4 << 10
	a := &d.at(c).answers[at(gzip)]
	a.once.Do(func() {
		f := d.form(c)
		fields, body := d.common(d.tag().etag, gzip), f.body
		fields = append(fields, hpack.HeaderField{Name: "content-type", Value: f.contentType})
		if gzip && len(body) >= leastZipped {
			fields = append(fields, hpack.HeaderField{Name: "content-encoding", Value: "gzip"})
			body = negotiate.Gzip(body)
		}
		a.made.Store(negotiate.Prepare(http.StatusOK, body, fields...))
	})
	return a.made.Load()
}

// at returns the index of the plain one, or of the other one, compressed or indented.
func at(other bool) int {
	if other {
		return 1
	}
	return 0
}

type addresses []metav1.ServerAddressByClientCIDR

func (a addresses) ServerAddressByClientCIDRs(net.IP) []metav1.ServerAddressByClientCIDR { return a }

// choice is the form negotiated by an Accept field.
type choice struct {
	media      int // in allMedias
	aggregated bool
	pretty     bool
	refused    bool // no acceptable form: 406
}

const (
	maxAccepts = 128 // bounds the cached Accept fields. A cluster's clients use a dozen
	maxAccept  = 512 // bounds the length of a cached field
)

func (c choice) of(aggregated, legacy *document) *document {
	if c.aggregated {
		return aggregated
	}
	return legacy
}

// choose chooses between both kinds of documents, as k8s.io/apiserver does. It caches its choices:
// parsing an Accept field costs ten times as much as serving a document.
func (d *Discovery) choose(accept string) choice {
	if e := d.chosen.Get(accept, time.Time{}); e != nil {
		return e.Value
	}
	// v2beta1 is no longer recognised, as in kube-apiserver since 1.35: the next clause decides.
	m, _ := negotiation.NegotiateMediaTypeOptions(accept, d.codecs.aggregated.SupportedMediaTypes(),
		aggregated.DiscoveryEndpointRestrictions)
	c := choice{media: mediaNumber(m.Accepted), aggregated: true, pretty: m.Pretty}
	if !aggregated.IsAggregatedDiscoveryGVK(m.Convert) {
		c = d.codecs.legacyChoice(accept)
	}
	until := time.Now().AddDate(1, 0, 0) // it stays right
	d.chosen.Put(&memo.Entry[string, choice]{Key: strings.Clone(accept), Value: c, Size: len(accept), Until: until})
	return c
}

// legacyChoice chooses a form of a legacy document, for which alone few ask.
func (c *codecs) legacyChoice(accept string) choice {
	m, ok := negotiation.NegotiateMediaTypeOptions(accept, c.legacy.SupportedMediaTypes(),
		negotiation.DefaultEndpointRestrictions)
	return choice{media: mediaNumber(m.Accepted), pretty: m.Pretty, refused: !ok}
}

func mediaNumber(info runtime.SerializerInfo) int {
	all := allMedias()
	return max(0, slices.Index(all[:], info.MediaType))
}

// produces reports whether go-restful would find one of the media types in the Accept field.
func produces(accept string, supported []string) bool {
	for item := range strings.SplitSeq(cmp.Or(accept, "*/*"), ",") {
		name, _, _ := strings.Cut(item, ";")
		if name = strings.Trim(name, " "); name == "*/*" || slices.Contains(supported, name) {
			return true
		}
	}
	return false
}

// wantsPretty reports whether a request asks for indented text, by its query, or comes from a tool that people read.
func wantsPretty(query, tool string) bool {
	if strings.Contains(query, "pretty") {
		values, _ := url.ParseQuery(query) //fairlead:boundary 1 KiB, else at the desk; as far as it can be parsed
		if v := values.Get("pretty"); v != "" {
			pretty, _ := strconv.ParseBool(v)
			return pretty
		}
	}
	return strings.HasPrefix(tool, "curl") || strings.HasPrefix(tool, "Wget") || strings.HasPrefix(tool, "Mozilla/5.0")
}
