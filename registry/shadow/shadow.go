// Package shadow finds the CustomResourceDefinitions that APIServices shadow.
//
// It is stateless: each Find asks the apiserver. Callers decide when to ask and what to report.
package shadow

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
)

const (
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	// mostDefinitions bounds how many definitions are read in full. No group is known to have more.
	mostDefinitions = 500
)

// Find asks an apiserver which CustomResourceDefinitions also serve the claimed group-versions, and returns the name of
// one definition for each such group-version. An error means that the result is unknown.
func Find(ctx context.Context, api rest.Interface, gvs []schema.GroupVersion) (map[schema.GroupVersion]string, error) {
	groups, claimed, found := make(map[string]bool), sets.New(gvs...), make(map[schema.GroupVersion]string)
	for _, gv := range gvs {
		groups[gv.Group] = true
	}
	if len(groups) == 0 {
		return found, nil
	}
	var list metav1.PartialObjectMetadataList
	// Names only, from the apiserver's cache: a thousand definitions in full would be 20 MB.
	err := getDefinitions(ctx, api, "", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", &list)
	if apierrors.IsNotFound(err) {
		return found, nil // an apiserver without definitions
	}
	if err != nil {
		return nil, err
	}
	read := 0
	for i := range list.Items {
		name := list.Items[i].Name
		if _, group, _ := strings.Cut(name, "."); !groups[group] || read == mostDefinitions {
			continue
		}
		read++
		var definition struct {
			Spec struct {
				Group    string `json:"group"`
				Versions []struct {
					Name   string `json:"name"`
					Served bool   `json:"served"`
				} `json:"versions"`
			} `json:"spec"`
		}
		err := getDefinitions(ctx, api, "/"+name, "application/json", &definition)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		for _, v := range definition.Spec.Versions {
			gv := schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}
			if old := found[gv]; v.Served && claimed.Has(gv) && (old == "" || name < old) { // the first by name
				found[gv] = name
			}
		}
	}
	return found, nil
}

func getDefinitions(ctx context.Context, api rest.Interface, name, accept string, into any) error {
	result := api.Get().AbsPath(definitions+name).Param("resourceVersion", "0").SetHeader("Accept", accept).Do(ctx)
	if err := result.Error(); err != nil { // DoRaw would replace the apiserver's error by "unknown"
		return fmt.Errorf("reading definitions of custom resources: %w", err)
	}
	data, _ := result.Raw()
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading definitions of custom resources: %w", err)
	}
	return nil
}
