package apiservices

import (
	"net/http"
	"time"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/util"
)

// newScheme makes a scheme of the group and of the kinds that every API server returns.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	return scheme
}

const maxBody = 3 << 20 // kube-apiserver's limit for request bodies

// groupVersion returns the installer's input, without the storage.
func groupVersion(scheme *runtime.Scheme, codecs serializer.CodecFactory) *endpoints.APIGroupVersion {
	// watchTime is how long a watch lasts, up to twice that: kube-apiserver's --min-request-timeout.
	const watchTime = 30 * time.Minute
	return &endpoints.APIGroupVersion{
		Root:                       "/apis",
		GroupVersion:               apiregistrationv1.SchemeGroupVersion,
		OptionsExternalVersion:     &metav1.Unversioned,
		Serializer:                 codecs,
		ParameterCodec:             metav1.ParameterCodec,
		Typer:                      scheme,
		Creater:                    scheme, //nolint:misspell // its name there
		Convertor:                  scheme,
		ConvertabilityChecker:      scheme,
		UnsafeConvertor:            runtime.UnsafeObjectConvertor(scheme),
		Defaulter:                  scheme,
		Namer:                      runtime.Namer(meta.NewAccessor()),
		MinRequestTimeout:          watchTime,
		MaxRequestBodyBytes:        maxBody,
		EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(),
	}
}

func (s *Server) install(container *restful.Container, served *endpoints.APIGroupVersion, v *version.Info) {
	v2, v3 := openAPI(served.Typer.(*runtime.Scheme))
	served.TypeConverter = managedfields.NewDeducedTypeConverter() // required by the installer
	if s.etcd != nil {
		kind := util.GetCanonicalTypeName(&apiregistrationv1.APIService{})
		schemas := made(builder3.BuildOpenAPIDefinitionsForResources(v3, kind))
		served.TypeConverter = made(managedfields.NewTypeConverter(schemas, false))
	}
	_, _, err := served.InstallREST(container)
	utilruntime.Must(err)
	s.paths.NotFoundHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, notFound()) }))
	s.paths.Handle(root+"/v1", container)
	s.paths.HandlePrefix(root+"/v1/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == root+"/v1/" { // the list of resources, as without the slash
			s.objects.ServeHTTP(w, r)
		} else if err := s.serveObject(w, r); err != nil {
			s.fail(w, r, err)
		}
	}))
	installOpenAPI(container, s.paths, v2, v3)

	gv := metav1.GroupVersionForDiscovery{GroupVersion: apiregistrationv1.SchemeGroupVersion.String(), Version: "v1"}
	group := metav1.APIGroup{Name: apiregistrationv1.GroupName, PreferredVersion: gv}
	group.Versions = []metav1.GroupVersionForDiscovery{gv}
	core := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o := &metav1.APIVersions{Versions: []string{}, ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{}}
		responsewriters.WriteObjectNegotiated(s.codecs, negotiation.DefaultEndpointRestrictions, metav1.Unversioned,
			w, r, http.StatusOK, o, false)
	})
	empty := aggregated.NewResourceManager("api")
	s.paths.Handle("/api", aggregated.WrapAggregatedDiscoveryToHandler(core, empty, empty))
	s.paths.Handle("/api/", core)

	groupHandler := discovery.NewAPIGroupHandler(s.codecs, group)
	s.paths.Handle(root, groupHandler)
	s.paths.Handle(root+"/", groupHandler)
	say := func(w http.ResponseWriter, _ *http.Request) { responsewriters.WriteRawJSON(http.StatusOK, v, w) }
	s.paths.HandleFunc("/version", say)
	s.paths.HandleFunc("/version/", say)
}
