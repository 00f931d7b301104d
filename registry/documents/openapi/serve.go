package openapi

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kube-openapi/pkg/handler3"
)

// The subtypes of application/ of each version. Protobuf has two names: kube-openapi's old one is no valid media type.
const (
	subtypeJSON = "json"

	subtypeProto2    = "com.github.proto-openapi.spec.v2.v1.0+protobuf"
	subtypeProto2Old = "com.github.proto-openapi.spec.v2@v1.0+protobuf"
	subtypeProto3    = "com.github.proto-openapi.spec.v3.v1.0+protobuf"
	subtypeProto3Old = "com.github.proto-openapi.spec.v3@v1.0+protobuf"
)

// ServeHTTP serves /openapi/v2, /openapi/v3 and /openapi/v3/<path of a remote group-version>.
func (o *OpenAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache, private") // kube-apiserver's default
	switch path := r.URL.Path; path {
	case "/openapi/v2":
		o.serveV2(w, r)
	case "/openapi/v3":
		var index *packed
		if v := o.view.Load(); v != nil {
			index = v.index()
		}
		if index == nil {
			writeError(w, o.NotReady())
			return
		}
		// kube-apiserver lets net/http guess the type, and this is the result.
		index.serve(w, r, "text/plain; charset=utf-8", index.hash)
	default:
		o.serveV3(w, r, strings.TrimPrefix(path, "/openapi/v3/"))
	}
}

func (o *OpenAPI) serveV2(w http.ResponseWriter, r *http.Request) {
	form := choose(w, r, subtypeJSON, subtypeProto2Old, subtypeProto2)
	if form == "" {
		return
	}
	b, err := o.document(r.Context())
	if err != nil {
		writeError(w, o.NotReady())
		return
	}
	b.serve(w, r, form, subtypeProto2)
}

// serveV3 serves one document. A document requested by its hash never changes, so clients may cache it for ever.
func (o *OpenAPI) serveV3(w http.ResponseWriter, r *http.Request, path string) {
	v := o.view.Load()
	if v == nil {
		writeError(w, o.NotReady())
		return
	}
	gv, _ := groupVersionOf(path)
	d := o.remote(v, gv)
	if d == nil && v.claimed[path] {
		d = v.converted()[path]
	}
	if d == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	form := choose(w, r, subtypeJSON, subtypeProto3, subtypeProto3Old)
	if form == "" {
		return
	}
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != d.json.hash {
			http.Redirect(w, r, itemOf(path, d.json.hash).ServerRelativeURL, http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().UTC().AddDate(1, 0, 0).Format(http.TimeFormat))
	}
	d.serve(w, r, form, subtypeProto3)
}

func (d *document) serve(w http.ResponseWriter, r *http.Request, form, proto string) {
	if form == subtypeJSON {
		d.json.serve(w, r, typeJSON, d.json.hash)
		return
	}
	p, err := d.proto()
	if err != nil {
		const message = "the document cannot be written in protobuf: ask for JSON"
		writeError(w, apierrors.NewGenericServerResponse(
			http.StatusNotAcceptable, "", schema.GroupResource{}, "", message, 0, false))
		return
	}
	p.serve(w, r, "application/"+proto, d.json.hash)
}

func groupVersionOf(path string) (schema.GroupVersion, bool) {
	parts := strings.SplitN(path, "/", 4) // a backend's may have millions
	switch {
	case len(parts) == 3 && parts[0] == "apis":
		return schema.GroupVersion{Group: parts[1], Version: parts[2]}, true
	case len(parts) == 2 && parts[0] == "api":
		return schema.GroupVersion{Version: parts[1]}, true
	}
	return schema.GroupVersion{}, false
}

func itemOf(path, hash string) handler3.OpenAPIV3DiscoveryGroupVersion {
	u := url.URL{Path: "/openapi/v3/" + path, RawQuery: url.Values{"hash": {hash}}.Encode()}
	return handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: u.String()}
}

// choose returns the subtype that the client prefers, as kube-openapi does, or answers itself if there is none.
func choose(w http.ResponseWriter, r *http.Request, subtypes ...string) string {
	w.Header().Add("Vary", "Accept")
	for _, clause := range goautoneg.ParseAccept(cmp.Or(r.Header.Get("Accept"), "*/*")) {
		for _, s := range subtypes {
			if (clause.Type == "application" || clause.Type == "*") && (clause.SubType == s || clause.SubType == "*") {
				return s
			}
		}
	}
	w.WriteHeader(http.StatusNotAcceptable)
	return ""
}

// writeError sends a Status in JSON, whatever the request accepts: OpenAPI's own types have no Status.
func writeError(w http.ResponseWriter, err *apierrors.StatusError) {
	if d := err.ErrStatus.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", "1")
	}
	responsewriters.WriteRawJSON(int(err.ErrStatus.Code), responsewriters.ErrorToAPIStatus(err), w)
}
