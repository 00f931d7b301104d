package openapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

const gvkExtension = "x-kubernetes-group-version-kind"

// pathOf returns a group-version's path without slashes at its ends: its name in the v3 index.
func pathOf(gv schema.GroupVersion) string { return (&registry.Entry{GroupVersion: gv}).Path()[1:] }

// below reports whether a path is below one of the group-versions, or is that of a group, which is in the list without
// a version. It costs the same for any number of them: backends choose both.
func below(path string, list sets.Set[schema.GroupVersion]) bool {
	p := strings.SplitN(path, "/", 5) // empty, apis, group, version, rest
	switch {
	case len(p) > 3 && p[0] == "" && p[1] == "api":
		return list.Has(schema.GroupVersion{Version: p[2]})
	case len(p) == 4 && p[1] == "apis" && p[3] == "":
		return list.Has(schema.GroupVersion{Group: p[2]})
	case len(p) > 4 && p[0] == "" && p[1] == "apis" && p[2] != "":
		return list.Has(schema.GroupVersion{Group: p[2], Version: p[3]})
	}
	return false
}

// guard turns a panic into an error: kube-openapi was made for trusted servers.
func guard(doing string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%s: %v", doing, p)
	}
}

// readSpec parses a v2 document. It survives any input.
func readSpec(body []byte) (sw *spec.Swagger, err error) {
	defer guard("decoding", &err)
	sw = &spec.Swagger{}
	if err := sw.UnmarshalJSON(body); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	return sw, nil
}

// maxObjects and maxValues bound the memory of a backend's decoded document: some 400 MB. An object of two bytes may
// become a spec.Schema of 528 bytes, in a slice that grows, and a number a YAML node of a kilobyte in the protobuf
// form: as many objects as fit into maxSpec took twelve gigabytes. Kubernetes' own document has 23,000 objects and
// 51,000 commas in 3 MB, so one of maxSpec has 120,000 and 270,000.
const (
	maxObjects = 200_000
	maxValues  = 300_000
)

// readForeign is readSpec for a backend's document, with plain names.
func readForeign(body []byte) (sw *spec.Swagger, err error) {
	if err := (documents.Answer{Body: body}).Bounded(maxObjects, maxValues); err != nil {
		return nil, err //nolint:wrapcheck // it says what was being done
	}
	if sw, err = readSpec(body); err != nil {
		return nil, err
	}
	defer guard("renaming", &err)
	return plainNames(sw), nil
}

// filterRemote reduces a backend's document to the paths of its own group-versions and the definitions they refer to,
// with kinds of its own only: who looks up a kind in the merged document must not find another server's.
func filterRemote(sw *spec.Swagger, versions []schema.GroupVersion) (out *spec.Swagger, err error) {
	defer guard("filtering", &err)
	own := sets.New(versions...)
	out = prune(sw, func(path string) bool { return below(path, own) })
	for name, d := range out.Definitions {
		if err := ownKinds(&d, own); err != nil {
			return nil, fmt.Errorf("filtering definition %q: %w", name, err)
		}
		out.Definitions[name] = d
	}
	for _, item := range out.Paths.Paths {
		for _, o := range operations(&item) {
			if kind, ok := o.Extensions[gvkExtension].(map[string]any); !ok || !isOwn(kind, own) {
				delete(o.Extensions, gvkExtension)
			}
		}
	}
	return out, nil
}

func operations(item *spec.PathItem) []*spec.Operation {
	all := []*spec.Operation{item.Get, item.Put, item.Post, item.Delete, item.Options, item.Head, item.Patch}
	return slices.DeleteFunc(all, func(o *spec.Operation) bool { return o == nil })
}

func isOwn(kind map[string]any, own sets.Set[schema.GroupVersion]) bool {
	group, named := kind["group"].(string)
	version, ok := kind["version"].(string)
	return named && ok && own.Has(schema.GroupVersion{Group: group, Version: version})
}

// maxExpansion bounds the bytes of shared parameters at each reference, and of schemas for each media type.
const maxExpansion = 256 << 20

// ownKinds drops kinds of other group-versions from a definition. A value that is no list of kinds
// is an error: merging it would fail, and with it the whole document.
func ownKinds(d *spec.Schema, own sets.Set[schema.GroupVersion]) error {
	value, found := d.Extensions[gvkExtension]
	list, ok := value.([]any)
	if found && !ok {
		return errors.New(gvkExtension + " is no list")
	}
	var out []any
	for _, item := range list {
		kind, ok := item.(map[string]any)
		if !ok {
			return errors.New(gvkExtension + " is no list of kinds")
		}
		if isOwn(kind, own) {
			out = append(out, item)
		}
	}
	setKinds(d, out)
	return nil
}

// filterLocal reduces the local apiserver's document to its own content: its aggregator has merged
// the remotes' into it, with definitions that no path uses, and with kinds that they claim.
func filterLocal(sw *spec.Swagger, remote []schema.GroupVersion) *spec.Swagger {
	set := sets.New(remote...)
	out := prune(sw, func(path string) bool { return !below(path, set) })
	uniqueKinds(out)
	return out
}

// toV3 converts a v2 document to v3, unless it would grow too much: the library copies a schema for each media type.
func toV3(sw *spec.Swagger) (body []byte, err error) {
	defer guard("converting", &err)
	cost, largest := 0, 0
	sizeOf := func(v any) int {
		b, err2 := json.Marshal(v)
		err = cmp.Or(err, err2)
		return len(b)
	}
	for _, p := range sw.Parameters {
		largest = max(largest, sizeOf(p))
	}
	for _, item := range sw.Paths.Paths {
		cost += largest * inline(item.Parameters, sw.Parameters)
		for _, o := range operations(&item) {
			if cost += largest * inline(o.Parameters, sw.Parameters); cost <= maxExpansion {
				cost += sizeOf(o) * (len(o.Consumes) + len(o.Produces))
			}
		}
	}
	if cost += sizeOf(sw.Responses) * len(sw.Produces); cost > maxExpansion || err != nil {
		return nil, cmp.Or(err, fmt.Errorf("%d bytes for all references and media types are too much", cost))
	}
	if body, err = json.Marshal(openapiconv.ConvertV2ToV3(sw)); err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	// Only $ref: allOf and others are not converted.
	body = bytes.ReplaceAll(body, []byte(`"$ref":"`+toDefinition), []byte(`"$ref":"#/components/schemas/`))
	if len(body) > maxDocument {
		return nil, fmt.Errorf("%d bytes are too much, at most %d", len(body), maxDocument)
	}
	return body, documents.Answer{Body: body}.Bounded(maxObjects, maxValues) //nolint:wrapcheck // it says what was done
}
