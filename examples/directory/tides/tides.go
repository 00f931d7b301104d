// Package tides is nearly the smallest extension API server that works with kubectl: one kind of
// object that is computed on request, as metrics are. It shows what an author must implement, and
// no more: discovery, OpenAPI, lists, tables and single objects. For a server that stores objects
// use k8s.io/apiserver.
//
// It serves TLS only to the front proxy, so it can trust the X-Remote-* headers of every request
// that reaches its handler. The front proxy has authorized the request already.
package tides

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// What is served.
const (
	group        = "tides.example.com"
	groupVersion = group + "/v1"
	root         = "/apis/" + groupVersion
)

// Config configures New.
type Config struct {
	// Certificate is the serving pair, for the name tides.harbour.svc. Required.
	Certificate tls.Certificate
	// FrontProxies signs the client certificates of front proxies, which may assert users.
	// Required: all other clients are refused in the handshake.
	FrontProxies *x509.CertPool
	// Now returns the current time. Nil means time.Now.
	Now func() time.Time
}

// Tide is how high the water stands in a harbour.
type Tide struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	// Status is computed anew for each request.
	Status TideStatus `json:"status"`
}

// TideStatus is the state of a Tide.
type TideStatus struct {
	// Centimetres is the height above the mean.
	Centimetres int `json:"centimetres"`
	// Rising tells whether the water rises.
	Rising bool `json:"rising"`
	// AskedBy is the user that the front proxy asserts.
	AskedBy string `json:"askedBy"`
}

type tideList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Tide `json:"items"`
}

// New makes the server. The caller calls ServeTLS without files, and closes it.
func New(cfg Config) *http.Server {
	s := &server{now: cfg.Now}
	if s.now == nil {
		s.now = time.Now
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis", s.groups)
	mux.HandleFunc("GET "+root, s.resources)
	mux.HandleFunc("GET "+root+"/tides", s.list)
	mux.HandleFunc("GET "+root+"/tides/{name}", s.get)
	mux.HandleFunc("GET /openapi/v3", s.openAPIIndex)
	mux.HandleFunc("GET /openapi/v3"+root, s.openAPI)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, r.URL.Path+" is not served")
	})
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second, // far more than a front proxy in the same cluster needs
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{cfg.Certificate},
			ClientCAs:    cfg.FrontProxies,
			ClientAuth:   tls.RequireAndVerifyClientCert,
			MinVersion:   tls.VersionTLS12,
		},
	}
}

type server struct{ now func() time.Time }

// period is half a lunar day: from one high water to the next.
const period = 12*time.Hour + 25*time.Minute

// harbours returns the tides of all harbours. A harbour has a name, the height of high water in
// centimetres, and a delay behind the first harbour.
func (s *server) harbours(r *http.Request) []Tide {
	var all []Tide
	for _, h := range []struct {
		name   string
		height float64
		delay  time.Duration
	}{{"brest", 310, 0}, {"dover", 335, 7 * time.Hour}, {"hamburg", 190, 4*time.Hour + 10*time.Minute}} {
		since := (time.Duration(s.now().UnixMilli())*time.Millisecond - h.delay) % period
		angle := 2 * math.Pi * float64(since) / float64(period)
		all = append(all, Tide{
			TypeMeta:   metav1.TypeMeta{APIVersion: groupVersion, Kind: "Tide"},
			ObjectMeta: metav1.ObjectMeta{Name: h.name},
			Status: TideStatus{
				Centimetres: int(h.height * math.Cos(angle)), Rising: math.Sin(angle) < 0,
				AskedBy: r.Header.Get("X-Remote-User"),
			},
		})
	}
	return all
}

func (s *server) list(w http.ResponseWriter, r *http.Request) {
	all := s.harbours(r)
	if asksTable(r) {
		reply(w, runtime.ContentTypeJSON, table(all))
		return
	}
	reply(w, runtime.ContentTypeJSON, tideList{
		TypeMeta: metav1.TypeMeta{APIVersion: groupVersion, Kind: "TideList"}, Items: all,
	})
}

func (s *server) get(w http.ResponseWriter, r *http.Request) {
	for _, t := range s.harbours(r) {
		switch {
		case t.Name != r.PathValue("name"):
		case asksTable(r):
			reply(w, runtime.ContentTypeJSON, table([]Tide{t}))
			return
		default:
			reply(w, runtime.ContentTypeJSON, t)
			return
		}
	}
	message := fmt.Sprintf("tides.%s %q not found", group, r.PathValue("name"))
	refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, message)
}

// asksTable reports whether the client prefers a table, as kubectl get does.
func asksTable(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=Table;v=v1;g=meta.k8s.io")
}

func table(tides []Tide) metav1.Table {
	t := metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"},
		ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name"},
			{Name: "Centimetres", Type: "integer"},
			{Name: "Going", Type: "string"},
		},
	}
	for i := range tides {
		going := "down"
		if tides[i].Status.Rising {
			going = "up"
		}
		meta := metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
			ObjectMeta: tides[i].ObjectMeta,
		}
		data, err := json.Marshal(meta)
		if err != nil {
			panic(err) // cannot happen: it is only a name
		}
		t.Rows = append(t.Rows, metav1.TableRow{
			Cells:  []any{tides[i].Name, tides[i].Status.Centimetres, going},
			Object: runtime.RawExtension{Raw: data},
		})
	}
	return t
}

// groups serves aggregated discovery: Fairlead requests nothing else at /apis, and makes the older
// forms from it.
func (s *server) groups(w http.ResponseWriter, _ *http.Request) {
	const form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	reply(w, form, apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{APIVersion: "apidiscovery.k8s.io/v2", Kind: "APIGroupDiscoveryList"},
		Items: []apidiscoveryv2.APIGroupDiscovery{{
			ObjectMeta: metav1.ObjectMeta{Name: group},
			Versions: []apidiscoveryv2.APIVersionDiscovery{{
				Version: "v1", Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
				Resources: []apidiscoveryv2.APIResourceDiscovery{{
					Resource: "tides", SingularResource: "tide", ShortNames: []string{"td"},
					Scope: apidiscoveryv2.ScopeCluster, Verbs: verbs(),
					ResponseKind: &metav1.GroupVersionKind{Group: group, Version: "v1", Kind: "Tide"},
				}},
			}},
		}},
	})
}

// resources answers Fairlead's health probe.
func (s *server) resources(w http.ResponseWriter, _ *http.Request) {
	reply(w, runtime.ContentTypeJSON, metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: groupVersion,
		APIResources: []metav1.APIResource{
			{Name: "tides", SingularName: "tide", ShortNames: []string{"td"}, Kind: "Tide", Verbs: verbs()},
		},
	})
}

func verbs() metav1.Verbs { return metav1.Verbs{"get", "list"} }

func reply(w http.ResponseWriter, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	_ = json.NewEncoder(w).Encode(body) // the client may have gone
}

func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	})
}
