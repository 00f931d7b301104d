// Package apiservices serves apiregistration.k8s.io/v1 as kube-apiserver does: from etcd (--registry=etcd:), writable,
// or read-only from the table (--registry=dir:), where each status is this replica's own verdict.
//
// It uses k8s.io/apiserver's handlers, so that negotiation, patches, tables, selectors, watches,
// discovery and OpenAPI are Kubernetes' own. The documents of all groups are registry/documents'. Without
// a local apiserver, it also answers in its place: /api, /version, and 404 for all other paths.
//
// Concurrency: one writer (Run) follows the table and publishes immutable states; each request reads one of them.
// Package etcd has its own rules. Requests are authorized before, except an apply that creates an object.
package apiservices

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/apiservices/etcd"
)

// Config configures New. Set either Table or Etcd.
type Config struct {
	Tables     latest.Tables[*registry.Table] // has the current table, served read-only. Not used with Etcd
	Etcd       *etcd.Config                   // where the objects are stored. Nil means in Tables
	Options    *registry.Options              // say which groups no remote may claim. Required with Etcd
	Authorizer authorizer.Authorizer          // may an apply's caller create a missing object? Required with Etcd
	Version    *version.Info                  // the content of /version
}

// Server serves the group. It has no objects to serve until Run runs.
type Server struct {
	cfg     Config
	store   *store      // objects of the table. Nil means etcd
	etcd    *etcd.Store // nil means store
	codecs  serializer.CodecFactory
	paths   *mux.PathRecorderMux
	objects http.Handler                                    // below the group-version
	known   func(ctx context.Context, version string) error // returns one for a revision from the future
	info    *request.RequestInfoFactory
	places  *places
}

// New makes a server.
func New(c Config) (*Server, error) {
	scheme := newScheme()
	s := &Server{
		cfg: c, codecs: serializer.NewCodecFactory(scheme), paths: mux.NewPathRecorderMux("apiservices"),
		places: &places{bodyTime: 30 * time.Second},
		info: &request.RequestInfoFactory{
			APIPrefixes: sets.NewString("apis", "api"), GrouplessAPIPrefixes: sets.NewString("api"),
		},
	}
	container := restful.NewContainer() // it recovers no panic: Fairlead does
	// As in k8s.io/apiserver/pkg/server/handler.go.
	container.ServiceErrorHandler(func(e restful.ServiceError, r *restful.Request, w *restful.Response) {
		err := apierrors.NewGenericServerResponse(e.Code, "", schema.GroupResource{}, "", e.Message, 0, false)
		s.fail(w, r.Request, err)
	})
	group := groupVersion(scheme, s.codecs)
	if c.Etcd != nil {
		var err error
		if s.etcd, err = etcd.New(scheme, *c.Etcd); err != nil {
			return nil, err
		}
		s.known = s.etcd.Known
		boundCopies()
		group.Storage, group.Authorizer = s.etcd.Storage(), c.Authorizer
		group.Admit = protection{admission.NewHandler(admission.Create, admission.Update), c.Options}
	} else {
		s.store = newStore()
		s.known = s.store.known
		group.Storage = s.store.readOnly(scheme)
	}
	s.install(container, group, c.Version)
	s.objects = filters.WithWarningRecorder(container)
	return s, nil
}

// Run serves the objects of the table, or of etcd, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	if s.etcd != nil {
		return s.etcd.Run(ctx)
	}
	defer s.store.stop()
	for t, changes := range latest.Changes(ctx, s.cfg.Tables.Table, nil) {
		if t.Complete() {
			s.store.follow(changes)
		}
	}
	return ctx.Err()
}

// Elect calls etcd.Store.Elect.
func (s *Server) Elect(ctx context.Context, name string, lead func(context.Context)) error {
	return s.etcd.Elect(ctx, name, lead)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w = &flushing{w}
	path := r.URL.Path
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case reads || s.store == nil && strings.HasPrefix(path+"/", root+"/v1/"):
		s.paths.ServeHTTP(w, r)
	case !strings.HasPrefix(path+"/", root+"/"):
		s.fail(w, r, notFound())
	default:
		err := apierrors.NewMethodNotSupported(apiregistrationv1.Resource("apiservices"), strings.ToLower(r.Method))
		if s.store != nil {
			err.ErrStatus.Message = "APIServices are read from a directory (--registry=dir:) " +
				"and cannot be changed here: change the manifest"
		}
		w.Header().Set("Allow", "GET, HEAD") // RFC 9110 §15.5.6
		s.fail(w, r, err)
	}
}

const root = "/apis/" + apiregistrationv1.GroupName

// serveObject returns why it has not answered.
func (s *Server) serveObject(w http.ResponseWriter, r *http.Request) error {
	info, err := s.info.NewRequestInfo(r)
	switch {
	case err != nil:
		return apierrors.NewBadRequest("the path has a verb, and no resource") // err repeats the query
	case s.store != nil && s.store.rest.ReadinessCheckFunc() != nil:
		return unread()
	case !info.IsResourceRequest || info.Resource != "apiservices" ||
		len(info.Parts) > 3 || len(info.Parts) == 3 && info.Parts[2] != "status":
		return notFound()
	}
	release, err := s.places.body(w, r)
	if err != nil {
		return err
	}
	defer release()
	place, ok := s.places.take(r, info.Verb)
	if !ok {
		return busy()
	}
	defer place.Leave()
	// The handlers require a time for their metrics, and an audit context: without a level, it records nothing.
	ctx := request.WithReceivedTimestamp(request.WithRequestInfo(r.Context(), info), time.Now())
	ctx = audit.WithAuditContext(ctx)
	switch info.Verb {
	case "get", "list", "watch", "deletecollection":
		err = s.known(ctx, r.URL.Query().Get("resourceVersion"))
	}
	if err == nil {
		s.objects.ServeHTTP(w, r.WithContext(ctx))
	}
	return err
}
