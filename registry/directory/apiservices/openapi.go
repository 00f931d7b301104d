package apiservices

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/server/mux"
	generated "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// title is what both documents call the server.
const title = "Fairlead"

// installOpenAPI makes the OpenAPI documents of the group, which kubectl explain reads. They are built lazily by their handlers.
func (s *Server) installOpenAPI(container *restful.Container, scheme *runtime.Scheme) error {
	names := openapinamer.NewDefinitionNamer(scheme)
	services := restfuladapter.AdaptWebServices(container.RegisteredWebServices())
	v2, err := builder.BuildOpenAPISpecFromRoutes(services, &common.Config{
		ProtocolList:          []string{"https"},
		Info:                  &spec.Info{InfoProps: spec.InfoProps{Title: title, Version: "v1"}},
		DefaultResponse:       &spec.Response{ResponseProps: spec.ResponseProps{Description: "Default Response."}},
		GetOperationIDAndTags: openapinamer.GetOperationIDAndTags, //nolint:staticcheck // k8s.io/apiserver has no other yet
		GetDefinitionName:     names.GetDefinitionName,
		GetDefinitions:        generated.GetOpenAPIDefinitions,
	})
	if err != nil {
		return fmt.Errorf("building OpenAPI v2: %w", err)
	}
	v2.Definitions = handler.PruneDefaults(v2.Definitions)
	handler.NewOpenAPIService(v2).RegisterOpenAPIVersionedService("/openapi/v2", s.paths)

	config := &common.OpenAPIV3Config{
		Info:                  &spec.Info{InfoProps: spec.InfoProps{Title: title, Version: "v1"}},
		DefaultResponse:       &spec3.Response{ResponseProps: spec3.ResponseProps{Description: "Default Response."}},
		GetOperationIDAndTags: openapinamer.GetOperationIDAndTags, //nolint:staticcheck // k8s.io/apiserver has no other yet
		GetDefinitionName:     names.GetDefinitionName,
		GetDefinitions:        generated.GetOpenAPIDefinitions,
	}
	config.Definitions = generated.GetOpenAPIDefinitions(func(name string) spec.Ref {
		name, _ = config.GetDefinitionName(name)
		return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(name))
	})
	v3, err := builder3.BuildOpenAPISpecFromRoutes(services, config)
	if err != nil {
		return fmt.Errorf("building OpenAPI v3: %w", err)
	}
	service := handler3.NewOpenAPIService()
	service.UpdateGroupVersion(strings.TrimPrefix(root, "/")+"/v1", v3)
	if err := service.RegisterOpenAPIV3VersionedService("/openapi/v3", oneSpec{s.paths}); err != nil {
		return fmt.Errorf("registering OpenAPI v3: %w", err)
	}
	return nil
}

// oneSpec registers the one document that there is: of all others kube-openapi's handler would say 200.
type oneSpec struct{ *mux.PathRecorderMux }

// HandlePrefix implements common.PathHandlerByGroupVersion.
func (o oneSpec) HandlePrefix(_ string, h http.Handler) { o.Handle("/openapi/v3"+root+"/v1", h) }
