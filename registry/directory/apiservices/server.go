// Package apiservices serves the group apiregistration.k8s.io/v1 read-only from the table of APIServices: what kube-apiserver would say if it
// had them. With --registry=dir:PATH this is how kubectl get apiservices works; the status of each object is this replica's own verdict.
//
// It is built from k8s.io/apiserver's own handlers over a storage of its own, so that negotiation, tables, selectors, watches, discovery and
// OpenAPI are Kubernetes' and not a second reading of them. Without any local apiserver the same Server also answers, as the smallest
// possible one, what a local apiserver would be asked for: /api, /apis, /openapi, /version and 404 for all else.
//
// Concurrency: one writer (Run) follows the table and publishes immutable states; every request reads one of them. It authorizes nobody: that
// is done before a request comes here.
package apiservices

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Config is what New needs.
type Config struct {
	// Table returns the current table; required.
	Table func() *registry.Table
	// Version is what /version says. Nil: it is not found.
	Version *version.Info
}

// Server serves the group. Run must run for it to have anything to serve.
type Server struct {
	table   func() *registry.Table
	store   *store
	codecs  serializer.CodecFactory
	paths   *mux.PathRecorderMux
	objects http.Handler // below the group-version
	info    *request.RequestInfoFactory
}

// New makes a server.
func New(c Config) (*Server, error) {
	if c.Table == nil {
		return nil, fmt.Errorf("making server of apiregistration.k8s.io: no table given")
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	s := &Server{
		table:  c.Table,
		store:  newStore(),
		codecs: serializer.NewCodecFactory(scheme),
		paths:  mux.NewPathRecorderMux("apiservices"),
		info:   &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis", "api"), GrouplessAPIPrefixes: sets.NewString("api")},
	}
	container := restful.NewContainer()
	container.Router(restful.CurlyRouter{})
	container.RecoverHandler(func(panicked any, w http.ResponseWriter) { panic(panicked) }) // the front door's own recovery answers
	if err := s.install(container, scheme, c.Version); err != nil {
		return nil, fmt.Errorf("making server of apiregistration.k8s.io: %w", err)
	}
	s.objects = container
	return s, nil
}

// newScheme knows the group and the kinds that every API server answers with.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := apiregistrationv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("making scheme of apiregistration.k8s.io: %w", err)
	}
	v1 := metav1.Unversioned
	metav1.AddToGroupVersion(scheme, v1)
	scheme.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	group := path == root || strings.HasPrefix(path, root+"/")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		s.refuse(w, r, group)
		return
	}
	s.paths.ServeHTTP(w, r)
}

// root of the group.
const root = "/apis/" + apiregistrationv1.GroupName

// serveObjects answers requests below the group-version.
func (s *Server) serveObjects(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == root+"/v1/" { // the list of resources, as without the slash
		s.objects.ServeHTTP(w, r)
		return
	}
	info, err := s.info.NewRequestInfo(r)
	if err != nil {
		s.fail(w, r, apierrors.NewBadRequest(err.Error()))
		return
	}
	parts := info.Parts
	switch {
	case !s.store.state().read:
		s.fail(w, r, unread())
		return
	case !info.IsResourceRequest || info.Resource != "apiservices" || len(parts) > 3 || len(parts) == 3 && parts[2] != "status":
		s.fail(w, r, notFound())
		return
	}
	ctx := request.WithReceivedTimestamp(r.Context(), time.Now()) // for the handlers' own metrics
	s.objects.ServeHTTP(&flushing{w, ctx}, r.WithContext(request.WithRequestInfo(ctx, info)))
}

// refuse answers a request that would change something.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, group bool) {
	if !group {
		s.fail(w, r, notFound())
		return
	}
	err := apierrors.NewMethodNotSupported(apiregistrationv1.Resource("apiservices"), strings.ToLower(r.Method))
	err.ErrStatus.Message = "APIServices are read from a directory (--registry=dir:) and cannot be changed here: change the manifest"
	w.Header().Set("Allow", "GET, HEAD") // RFC 9110 §15.5.6
	s.fail(w, r, err)
}

// fail answers with a Status in the client's form.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, s.codecs, apiregistrationv1.SchemeGroupVersion, w, r)
}

func notFound() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource",
	}}
}

// unread is the answer until the directory has been read: a 404 would be taken for "gone".
func unread() error {
	err := apierrors.NewServiceUnavailable("the directory of APIServices has not been read yet")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}
