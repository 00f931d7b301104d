package manifest_test

import (
	"fmt"

	"github.com/fairlead-proxy/fairlead/registry/directory/manifest"
)

// Faults of a manifest name the file, the line and the field.
func ExampleDecoder_Decode() {
	decoder, err := manifest.NewDecoder()
	if err != nil {
		fmt.Println(err)
		return
	}
	objects, faults := decoder.Decode("widgets.yaml", []byte(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1.widgets.example.com
spec:
  group: widgets.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  service: {name: widgets, namespace: default, prot: 443}
`))
	fmt.Println(len(objects))
	for _, f := range faults {
		fmt.Println(f)
	}
	// Output:
	// 0
	// widgets.yaml:10: spec.service.prot: unknown field
}
