package apiservices

import (
	"encoding/json"
	"net/http"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/server/mux"
	generated "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// openAPI returns how the OpenAPI documents of the group are made, for kubectl explain and apply.
func openAPI(scheme *runtime.Scheme) (*common.Config, *common.OpenAPIV3Config) {
	v2 := &common.Config{
		ProtocolList:          []string{"https"},
		Info:                  &spec.Info{InfoProps: spec.InfoProps{Title: "Fairlead", Version: "v1"}},
		DefaultResponse:       &spec.Response{ResponseProps: spec.ResponseProps{Description: "Default Response."}},
		GetOperationIDAndTags: openapinamer.GetOperationIDAndTags, //nolint:staticcheck // there is no other yet
		GetDefinitionName:     openapinamer.NewDefinitionNamer(scheme).GetDefinitionName,
		GetDefinitions:        generated.GetOpenAPIDefinitions,
	}
	return v2, &common.OpenAPIV3Config{
		Info:                  v2.Info,
		DefaultResponse:       &spec3.Response{ResponseProps: spec3.ResponseProps{Description: "Default Response."}},
		GetOperationIDAndTags: v2.GetOperationIDAndTags, //nolint:staticcheck // as above
		GetDefinitionName:     v2.GetDefinitionName,
		GetDefinitions:        v2.GetDefinitions,
	}
}

// made returns what is made of kinds that are compiled in: that fails always, or never.
func made[T any](v T, err error) T {
	utilruntime.Must(err)
	return v
}

// installOpenAPI serves the documents, for registry/documents/openapi of this process only.
func installOpenAPI(from *restful.Container, to *mux.PathRecorderMux, v2 *common.Config, v3 *common.OpenAPIV3Config) {
	services := restfuladapter.AdaptWebServices(from.RegisteredWebServices())
	whole := made(builder.BuildOpenAPISpecFromRoutes(services, v2))
	whole.Definitions = handler.PruneDefaults(whole.Definitions)
	for path, document := range map[string]any{
		"/openapi/v2":                whole,
		"/openapi/v3" + root + "/v1": made(builder3.BuildOpenAPISpecFromRoutes(services, v3)),
	} {
		body := made(json.Marshal(document))
		to.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
	}
}
