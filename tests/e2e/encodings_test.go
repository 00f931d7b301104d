//go:build e2e

package e2e

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const (
	asJSON, asCBOR, asSequence = "application/json", "application/cbor", "application/cbor-seq"

	// alpha are gates of everything that is based on k8s.io/apiserver.
	alpha = "%[1]sCBORServingAndStorage=true,%[1]sShardedListAndWatch=true"
	shard = "shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')"
	whole = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	buoys = 60 // the number of objects, which have 0.5 MB: lists of more than 128 KiB are compressed
)

// pair is two ways to the same objects: directly, and through Fairlead.
type pair struct {
	*world
	kind
	objects dynamic.ResourceInterface

	clients [2]*http.Client
	urls    [2]string
	streams []*stream
}

// encoding is a form in which lists and watches are requested. as is their type where gates are on.
type encoding struct{ name, as, accept, zip, shard string }

func encodings() []encoding {
	return []encoding{
		{"JSON", asJSON, asJSON, "", ""},
		{"JSON gzip", asJSON, asJSON, "gzip", ""},
		{"CBOR", asCBOR, asCBOR, "", ""},
		{"CBOR gzip", asCBOR, asCBOR, "gzip", ""},
		{"client-go", asCBOR, asJSON + ";q=0.9," + asCBOR + ";q=1", "gzip", ""},
		{"half in JSON", asJSON, asJSON, "", shard},
		{"half in CBOR gzip", asCBOR, asCBOR, "gzip", shard},
	}
}

// testEncodings compares bodies, lists and watches through Fairlead with those of kube-apiserver behind it, for its own
// objects and the extension server's. Without the gates, these refuse CBOR and ignore shards.
func testEncodings(t *testing.T, w *world) {
	behind := w.EndpointOf(len(w.APIServers) - 1)
	must.Do(t, w.WaitAvailable(t.Context(), behind, "wardle.example.com/v1beta1"))
	for i, root := range []string{"/api/v1", "/apis/wardle.example.com/v1beta1"} {
		for _, proto := range w.protos() {
			p := &pair{world: w, kind: kinds()[i]}
			t.Run(p.name+" "+proto, func(t *testing.T) {
				t.Parallel()
				ns, ctx := w.namespace(t), t.Context()
				p.objects = w.dynamic.Resource(p.gvr).Namespace(ns)
				w.admin(t).Soon(t, "nobody else makes a ConfigMap there", "get", "-n", ns, "configmap/kube-root-ca.crt")
				for i, e := range []cluster.Endpoint{behind, w.server} {
					p.clients[i] = &http.Client{Transport: transport(t, e, w.Admin().Pair, proto)}
					p.urls[i] = e.URL + root + "/namespaces/" + ns + "/" + p.name
				}
				t.Run("bodies", p.testBodies)
				for _, e := range encodings() {
					t.Run(e.name, func(t *testing.T) { p.testEncoding(ctx, t, e) })
				}
				t.Run("ends", func(t *testing.T) {
					for _, s := range p.streams {
						err := s.until("nothing")
						check.Same(t, true, errors.Is(err, io.EOF), "%s: %v", s.Request.URL, err)
					}
				})
			})
		}
	}
}

// testBodies creates the objects, through Fairlead.
func (p *pair) testBodies(t *testing.T) {
	as, apply, encode := asJSON, "application/apply-patch+yaml", json.Marshal
	if p.gates {
		as, apply, encode = asCBOR, "application/apply-patch+cbor", direct.Marshal
	}
	value, body := strings.Repeat("is afloat. ", 800), ""
	for i := range buoys {
		body = string(must.Get(encode(p.object(fmt.Sprintf("buoy-%d", i), value).Object))(t))
		header := http.Header{"Content-Type": {as}, "Accept": {as}}
		r := must.Get(ask.Do(t.Context(), p.clients[1], http.MethodPost, p.urls[1], header, body))(t)
		must.Be(t, r.Code == http.StatusCreated && strings.Contains(r.Body, value), "status %d, %v: %.300q", r.Code, r.Header, r.Body)
	}
	for _, c := range []struct {
		method, path, as, body string
		code                   int
	}{
		{http.MethodPost, "", as, body, http.StatusConflict},
		{http.MethodPost, "", as, body[:99], http.StatusBadRequest},
		{http.MethodPost, "", asSequence, body, http.StatusUnsupportedMediaType},
		{http.MethodPatch, "/buoy-59?force=true&fieldManager=test", apply, body, http.StatusOK}, // the second changes nothing
	} {
		r := p.both(t, c.method, c.path, http.Header{"Content-Type": {c.as}, "Accept": {as}}, c.body)
		check.Same(t, c.code, r.Code, "%s as %s", c.method, c.as)
	}
}

// both sends a request both ways and compares the replies. It returns Fairlead's.
func (p *pair) both(t *testing.T, method, path string, header http.Header, body string) ask.Reply {
	t.Helper()
	var replies [2]ask.Reply
	var bodies [2]any
	for i, c := range p.clients {
		replies[i] = must.Get(ask.Do(t.Context(), c, method, p.urls[i]+path, header, body))(t)
		must.Do(t, decoder(t, replies[i].Header, strings.NewReader(replies[i].Body))(&bodies[i]))
	}
	want, got := replies[0], replies[1]
	check.Same(t, want.Code, got.Code, "status of %s %s %v", method, path, header)
	check.Same(t, compared(want.Header), compared(got.Header), "header of %s %s %v", method, path, header)
	check.Same(t, bodies[0], bodies[1], "body of %s %s %v", method, path, header)
	return got
}

func compared(h http.Header) http.Header {
	return http.Header{"Content-Type": h["Content-Type"], "Content-Encoding": h["Content-Encoding"], "Vary": h["Vary"]}
}

// decoder returns a function that decodes the next value of a body. In CBOR the order of fields varies.
func decoder(t *testing.T, header http.Header, body io.Reader) func(any) error {
	t.Helper()
	if header.Get("Content-Encoding") == "gzip" {
		body = must.Get(gzip.NewReader(body))(t)
	}
	if !strings.HasPrefix(header.Get("Content-Type"), asCBOR) {
		return json.NewDecoder(body).Decode
	}
	frames, frame := cbor.NewFramer().NewFrameReader(io.NopCloser(body)), make([]byte, 1<<20)
	return func(v any) error {
		n, err := frames.Read(frame)
		return cmp.Or(err, direct.Unmarshal(frame[:n], v))
	}
}

// testEncoding compares a list and watches of one encoding. The watches stay open until ctx ends.
func (p *pair) testEncoding(ctx context.Context, t *testing.T, e encoding) {
	now := must.Get(p.objects.List(ctx, metav1.ListOptions{ShardSelector: e.shard}))(t)
	if n := len(now.Items); n == 0 || (n < buoys) != (p.gates && e.shard != "") {
		t.Fatalf("%d objects", n)
	}
	version, query := "&resourceVersion="+now.GetResourceVersion(), "&shardSelector="+e.shard
	header := http.Header{"Accept": {e.accept}, "Accept-Encoding": {cmp.Or(e.zip, "identity")}}
	list := p.both(t, http.MethodGet, "?resourceVersionMatch=Exact"+version+query, header, "")
	if got := list.Header; p.gates && (got.Get("Content-Type") != e.as || got.Get("Content-Encoding") != e.zip) {
		t.Errorf("list: %v", got)
	}
	for from, zip := range map[string]string{version: "", whole: e.zip} { // kube-apiserver compresses no others
		s := p.watch(ctx, t, header, from+query, now.Items[0].GetName())
		if s == nil {
			check.Same(t, http.StatusNotAcceptable, list.Code, "status of a list")
			continue
		}
		got := s.Header
		if p.gates && !strings.HasPrefix(got.Get("Content-Type"), e.as) || got.Get("Content-Encoding") != zip || s.whole != (from == whole) {
			t.Errorf("watch from %s, %t: %v", from, s.whole, got)
		}
	}
}

// watch compares watches while an object changes. Each change is made only after the one before it has arrived both
// ways: nothing waits for more. It returns Fairlead's watch, or nil if both are refused.
func (p *pair) watch(ctx context.Context, t *testing.T, header http.Header, from, object string) *stream {
	t.Helper()
	both := make([]*stream, 0, 2)
	for i, c := range p.clients {
		// 30 s are enough for the slowest machine. "ends" waits for them once.
		res, err := ask.Open(ctx, c, p.urls[i]+"?watch=true&timeoutSeconds=30"+from, header)
		if err == nil {
			both = append(both, &stream{Response: res, decode: decoder(t, res.Header, res.Body)})
		} else if p.gates || !strings.HasPrefix(err.Error(), "406 ") {
			t.Fatal(err)
		}
	}
	if len(both) < 2 {
		check.Same(t, 0, len(both), "ways that are not refused")
		return nil
	}
	for beat := range 3 {
		mark := fmt.Sprintf("%s at %s for %d", t.Name(), from[1:9], beat)
		body := fmt.Appendf(nil, `{"metadata":{"annotations":{"mark":%q}}}`, mark)
		must.Get(p.objects.Patch(ctx, object, types.MergePatchType, body, metav1.PatchOptions{}))(t)
		must.Do(t, errors.Join(both[0].until(mark), both[1].until(mark)))
	}
	check.Same(t, compared(both[0].Header), compared(both[1].Header), "header")
	check.Same(t, both[0].events, both[1].events, "events")
	p.streams = append(p.streams, both...)
	return both[1]
}

type stream struct {
	*http.Response

	decode func(any) error
	events []string // as JSON
	whole  bool     // the end of the initial events was announced
}

// until reads events up to one that contains mark. It leaves out bookmarks, which come at any time.
func (s *stream) until(mark string) error {
	for {
		var event map[string]any
		if err := s.decode(&event); err != nil {
			return err
		}
		encoded, _ := json.Marshal(event) // which was decoded
		text := string(encoded)
		if event["type"] == "BOOKMARK" {
			s.whole = s.whole || strings.Contains(text, "k8s.io/initial-events-end")
			continue
		}
		s.events = append(s.events, text)
		if strings.Contains(text, mark) {
			return nil
		}
	}
}
