package openapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// The prefixes of references.
const (
	toDefinition = "#/definitions/"
	toParameter  = "#/parameters/"
	toResponse   = "#/responses/"
)

// plainNames names what is referred to so that a reference needs no escapes, as kube-apiserver
// names its own: kube-openapi compares references with names as written. A reference that leads
// nowhere is removed, so its schema allows anything: clients refuse the whole document for one.
func plainNames(sw *spec.Swagger) *spec.Swagger {
	names := make(map[string]string)
	out := *sw
	maps.DeleteFunc(sw.Parameters, func(_ string, p spec.Parameter) bool { return p.Ref.String() != "" }) // no loops
	out.Definitions = renamed(toDefinition, sw.Definitions, names)
	out.Parameters = renamed(toParameter, sw.Parameters, names)
	out.Responses = renamed(toResponse, sw.Responses, names)
	unescape := strings.NewReplacer("~1", "/", "~0", "~") // RFC 6901; %-escapes are already decoded
	plain := func(ref *spec.Ref) *spec.Ref {
		text := ref.String()
		if text == "" {
			return ref
		}
		to := names[text] // of one that kube-apiserver finds, though it lacks escapes
		if ref.HasFragmentOnly {
			to = cmp.Or(names["#"+unescape.Replace(ref.GetURL().Fragment)], to)
		}
		if to == text {
			return ref
		}
		next, _ := spec.NewRef(to) // a plain name cannot fail, and no name makes no reference
		return &next
	}
	walker := schemamutation.Walker{RefCallback: plain, SchemaCallback: func(s *spec.Schema) *spec.Schema {
		if to := plain(&s.Ref).String(); to != "" && !strings.HasPrefix(to, toDefinition) { // to what it may be part of
			own := *s
			own.Ref, s = spec.Ref{}, &own
		}
		return s
	}}
	return walker.WalkRoot(&out)
}

// renamed returns a map with plain names, and adds to names what references to each become.
func renamed[T any](prefix string, from map[string]T, names map[string]string) map[string]T {
	out := make(map[string]T, len(from))
	sorted := slices.Sorted(maps.Keys(from))  // so that each replica gives the same names
	for _, odd := range []bool{false, true} { // plain ones keep their names
		for _, name := range sorted {
			to := strings.Map(inName, name)
			if odd != (to != name || name == "") {
				continue
			}
			if _, taken := out[to]; odd && (taken || name == "") {
				to += "_" + negotiate.Hash([]byte(name))[:16] // so many hardly collide by chance
			}
			out[to], names[prefix+name] = from[name], prefix+to
		}
	}
	return out
}

// inName returns a rune that may be in a name of OpenAPI v3, for others a dot.
func inName(r rune) rune {
	if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_') {
		return r
	}
	return '.'
}

// prune keeps some paths, and what they refer to. kube-openapi's own would keep definitions that no
// path uses, compares paths by prefixes, and follows a shared parameter at each reference anew.
func prune(sw *spec.Swagger, keep func(path string) bool) *spec.Swagger {
	out, next, paths := *sw, spec.Swagger{}, *cmp.Or(sw.Paths, &spec.Paths{})
	paths.Paths = maps.Clone(paths.Paths)
	maps.DeleteFunc(paths.Paths, func(path string, _ spec.PathItem) bool { return !keep(path) })
	out.Paths, next.Paths = &paths, &paths
	out.Definitions, out.Parameters = spec.Definitions{}, map[string]spec.Parameter{}
	out.Responses = map[string]spec.Response{}
	for more := true; more; {
		found := make(map[string]bool)
		schemamutation.ReplaceReferences(func(ref *spec.Ref) *spec.Ref { // which it does not follow
			found[ref.String()] = true
			return ref
		}, &next)
		next = spec.Swagger{SwaggerProps: spec.SwaggerProps{
			Definitions: spec.Definitions{}, Parameters: map[string]spec.Parameter{},
			Responses: map[string]spec.Response{},
		}}
		for ref := range found {
			move(ref, toDefinition, sw.Definitions, out.Definitions, next.Definitions)
			move(ref, toParameter, sw.Parameters, out.Parameters, next.Parameters)
			move(ref, toResponse, sw.Responses, out.Responses, next.Responses)
		}
		more = len(next.Definitions)+len(next.Parameters)+len(next.Responses) > 0
	}
	return &out
}

// move adds what a reference leads to, to kept and, if it was not there, to next.
func move[T any](ref, prefix string, from, kept, next map[string]T) {
	name, ok := strings.CutPrefix(ref, prefix)
	if v, exists := from[name]; ok && exists {
		if _, known := kept[name]; !known {
			kept[name], next[name] = v, v
		}
	}
}

// inline replaces references to shared parameters, which openapiconv leaves out, and returns how many.
func inline(parameters []spec.Parameter, shared map[string]spec.Parameter) (n int) {
	for i := range parameters {
		if p, ok := shared[strings.TrimPrefix(parameters[i].Ref.String(), toParameter)]; ok {
			parameters[i] = p
			n++
		}
	}
	return n
}

// uniqueKinds leaves a kind to the definition that has its name, if there is one. Another's is a
// stranger's claim, merged into a definition of equal content.
func uniqueKinds(sw *spec.Swagger) {
	named := make(map[string]bool)
	for name, d := range sw.Definitions {
		for _, kind := range kindsOf(&d) {
			named[fmt.Sprint(kind)] = named[fmt.Sprint(kind)] || isNameOf(name, kind)
		}
	}
	for name, d := range sw.Definitions {
		others := func(kind any) bool { return named[fmt.Sprint(kind)] && !isNameOf(name, kind) }
		setKinds(&d, slices.DeleteFunc(slices.Clone(kindsOf(&d)), others))
		sw.Definitions[name] = d
	}
}

// isNameOf reports whether a definition has the name that kube-apiserver gives to that of a kind.
func isNameOf(definition string, kind any) bool {
	k, _ := kind.(map[string]any)
	return strings.HasSuffix(definition, fmt.Sprint(".", k["version"], ".", k["kind"]))
}

func kindsOf(d *spec.Schema) []any {
	list, _ := d.Extensions[gvkExtension].([]any)
	return list
}

// setKinds replaces the kinds of a definition. Others may share its extensions, so they are copied. They are never nil:
// kube-openapi writes the kinds of an equal definition to them when it merges the two.
func setKinds(d *spec.Schema, kinds []any) {
	if d.Extensions = maps.Collect(maps.All(d.Extensions)); len(kinds) == 0 {
		delete(d.Extensions, gvkExtension)
		return
	}
	d.Extensions[gvkExtension] = kinds
}
