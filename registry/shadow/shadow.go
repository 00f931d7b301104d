// Package shadow finds the CustomResourceDefinitions that APIServices hide.
//
// It keeps nothing: each call of Find asks anew. When to ask, and what to say of it, is its callers' to know.
package shadow

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

const (
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	// mostDefinitions bounds how many definitions are read whole. One group with more of them is not known.
	mostDefinitions = 500
)

// Find asks an apiserver which CustomResourceDefinitions serve the claimed group-versions too, and returns the name of one for each that has any. Its error says
// that nobody can tell.
func Find(ctx context.Context, client rest.Interface, claimed []schema.GroupVersion) (map[schema.GroupVersion]string, error) {
	groups := make(map[string]bool)
	for _, gv := range claimed {
		groups[gv.Group] = true
	}
	if len(groups) == 0 {
		return nil, nil //nolint:nilnil // nothing is hidden
	}
	var list metav1.PartialObjectMetadataList
	// Names alone, of whatever age: a thousand definitions whole would be 20 MB.
	err := getDefinitions(ctx, client, definitions, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", &list)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // an apiserver without definitions
	}
	if err != nil {
		return nil, err
	}
	found := make(map[schema.GroupVersion]string)
	read := 0
	for i := range list.Items {
		name := list.Items[i].Name
		if _, group, _ := strings.Cut(name, "."); !groups[group] || read == mostDefinitions {
			continue
		}
		read++
		if err := readDefinition(ctx, client, name, found); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	maps.DeleteFunc(found, func(gv schema.GroupVersion, _ string) bool { return !slices.Contains(claimed, gv) })
	return found, nil
}

// readDefinition notes what a definition serves. The first in the order of names stands for all of a group-version.
func readDefinition(ctx context.Context, client rest.Interface, name string, found map[schema.GroupVersion]string) error {
	var definition struct {
		Spec struct {
			Group    string `json:"group"`
			Versions []struct {
				Name   string `json:"name"`
				Served bool   `json:"served"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := getDefinitions(ctx, client, definitions+"/"+name, "application/json", &definition); err != nil {
		return err
	}
	for _, v := range definition.Spec.Versions {
		gv := schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}
		if old := found[gv]; v.Served && (old == "" || name < old) {
			found[gv] = name
		}
	}
	return nil
}

func getDefinitions(ctx context.Context, client rest.Interface, path, accept string, into any) error {
	result := client.Get().AbsPath(path).Param("resourceVersion", "0").SetHeader("Accept", accept).Do(ctx)
	if err := result.Error(); err != nil { // DoRaw would say "unknown" whatever the apiserver says
		return fmt.Errorf("reading definitions of custom resources: %w", err)
	}
	data, _ := result.Raw()
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading definitions of custom resources: %w", err)
	}
	return nil
}
