package rules

import (
	"go/types"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// An interface with one implementation, or a func field that returns any, is a detour for readers.
func TestNoDetours(t *testing.T) {
	const mode = packages.NeedName | packages.NeedImports | packages.NeedExportFile | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo
	cfg := &packages.Config{Context: t.Context(), Dir: "../..", Mode: mode}
	all := map[string]*types.Info{} // :: folder → its package
	for _, p := range must.Get(packages.Load(cfg, "./certs/...", "./cmd/...", "./health/...", "./internal/...", "./proxy/...", "./registry/..."))(t) {
		if len(p.Errors) > 0 {
			t.Fatal(p.Errors)
		}
		all[strings.TrimPrefix(p.PkgPath, module+"/")] = p.TypesInfo
	}
	must.Be(t, len(all) >= 40, "%d packages", len(all))
	t.Run("interfaces", func(t *testing.T) { haveImplementations(t, all) })
	t.Run("func fields", func(t *testing.T) { returnTypes(t, all) })
}

// haveImplementations requires that an interface has several implementations, or none in this
// module because a library implements it. A single implementation is used directly.
func haveImplementations(t *testing.T, all map[string]*types.Info) {
	t.Helper()
	named := map[string]*types.Named{}
	for path, info := range all {
		for _, o := range info.Defs {
			if tn, ok := o.(*types.TypeName); ok && !tn.IsAlias() {
				if n, ok := tn.Type().(*types.Named); ok && n.TypeParams().Len() == 0 {
					named[path+"."+tn.Name()] = n
				}
			}
		}
	}
	for name, n := range named {
		i, ok := n.Underlying().(*types.Interface)
		if !ok || !i.IsMethodSet() { // a constraint of type parameters
			continue
		}
		var by []string
		for other, o := range named {
			if !types.IsInterface(o) && (types.Implements(o, i) || types.Implements(types.NewPointer(o), i)) && ours(o, i) {
				by = append(by, other)
			}
		}
		if len(by) == 1 {
			t.Errorf("%s has one implementation, %s: use it, or a func", name, by[0])
		}
	}
}

// ours reports whether o has a method of i itself. Otherwise a library's type, which o embeds, implements i.
func ours(o *types.Named, i *types.Interface) bool {
	for m := range i.Methods() {
		has, _, _ := types.LookupFieldOrMethod(o, true, m.Pkg(), m.Name())
		if has.Pkg() != nil && strings.HasPrefix(has.Pkg().Path(), module+"/") {
			return true
		}
	}
	return false
}

// returnTypes forbids func fields that return any: callers would need a type assertion.
func returnTypes(t *testing.T, all map[string]*types.Info) {
	t.Helper()
	for path, info := range all {
		for _, o := range info.Defs {
			field, ok := o.(*types.Var)
			if !ok || !field.IsField() {
				continue
			}
			f, ok := field.Type().Underlying().(*types.Signature)
			if !ok {
				continue
			}
			for r := range f.Results().Variables() {
				if i, ok := types.Unalias(r.Type()).(*types.Interface); ok && i.Empty() {
					t.Errorf("%s.%s returns any", path, field.Name())
				}
			}
		}
	}
}
