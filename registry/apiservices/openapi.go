package apiservices

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/server/mux"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	generated "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// title is the title of both documents.
const title = "Fairlead"

// openAPI makes the OpenAPI documents of the group, for kubectl explain and apply.
type openAPI struct {
	v2 *common.Config
	v3 *common.OpenAPIV3Config
}

func newOpenAPI(scheme *runtime.Scheme) *openAPI {
	names := openapinamer.NewDefinitionNamer(scheme)
	info := &spec.Info{InfoProps: spec.InfoProps{Title: title, Version: "v1"}}
	o := &openAPI{
		v2: &common.Config{
			ProtocolList:          []string{"https"},
			Info:                  info,
			DefaultResponse:       &spec.Response{ResponseProps: spec.ResponseProps{Description: "Default Response."}},
			GetOperationIDAndTags: openapinamer.GetOperationIDAndTags, //nolint:staticcheck // k8s.io/apiserver has no other yet
			GetDefinitionName:     names.GetDefinitionName,
			GetDefinitions:        generated.GetOpenAPIDefinitions,
		},
		v3: &common.OpenAPIV3Config{
			Info:                  info,
			DefaultResponse:       &spec3.Response{ResponseProps: spec3.ResponseProps{Description: "Default Response."}},
			GetOperationIDAndTags: openapinamer.GetOperationIDAndTags, //nolint:staticcheck // k8s.io/apiserver has no other yet
			GetDefinitionName:     names.GetDefinitionName,
			GetDefinitions:        generated.GetOpenAPIDefinitions,
		},
	}
	o.v3.Definitions = generated.GetOpenAPIDefinitions(func(name string) spec.Ref {
		name, _ = names.GetDefinitionName(name)
		return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(name))
	})
	return o
}

// types returns the converter for managed fields.
func (o *openAPI) types() (managedfields.TypeConverter, error) {
	schemas, err := builder3.BuildOpenAPIDefinitionsForResources(o.v3, util.GetCanonicalTypeName(&apiregistrationv1.APIService{}))
	if err != nil {
		return nil, fmt.Errorf("building OpenAPI schemas: %w", err)
	}
	types, err := managedfields.NewTypeConverter(schemas, false)
	if err != nil {
		return nil, fmt.Errorf("reading OpenAPI schemas: %w", err)
	}
	return types, nil
}

// install serves the documents. They are built lazily by their handlers.
func (o *openAPI) install(container *restful.Container, to *mux.PathRecorderMux) error {
	services := restfuladapter.AdaptWebServices(container.RegisteredWebServices())
	v2, err := builder.BuildOpenAPISpecFromRoutes(services, o.v2)
	if err != nil {
		return fmt.Errorf("building OpenAPI v2: %w", err)
	}
	v2.Definitions = handler.PruneDefaults(v2.Definitions)
	handler.NewOpenAPIService(v2).RegisterOpenAPIVersionedService("/openapi/v2", to)
	v3, err := builder3.BuildOpenAPISpecFromRoutes(services, o.v3)
	if err != nil {
		return fmt.Errorf("building OpenAPI v3: %w", err)
	}
	service := handler3.NewOpenAPIService()
	service.UpdateGroupVersion(strings.TrimPrefix(root, "/")+"/v1", v3)
	if err := service.RegisterOpenAPIV3VersionedService("/openapi/v3", oneSpec{to}); err != nil {
		return fmt.Errorf("registering OpenAPI v3: %w", err)
	}
	return nil
}

// oneSpec registers only the existing document: kube-openapi's handler would answer 200 for others.
type oneSpec struct{ *mux.PathRecorderMux }

// HandlePrefix implements common.PathHandlerByGroupVersion.
func (o oneSpec) HandlePrefix(_ string, h http.Handler) { o.Handle("/openapi/v3"+root+"/v1", h) }
