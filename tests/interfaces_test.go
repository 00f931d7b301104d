package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// shipped type-checks the packages of this module that the commands link, by folder.
func shipped(t *testing.T) map[string]*types.Info {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles", "./cmd/fairlead", "./cmd/kubectl-fairlead")
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	fset, exports, ours := token.NewFileSet(), map[string]string{}, map[string]*types.Package{}
	foreign := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	checked := map[string]*types.Info{}
	for list := json.NewDecoder(bytes.NewReader(out)); ; { // imported packages come first
		var p struct {
			ImportPath, Export, Dir string
			GoFiles                 []string
		}
		if err := list.Decode(&p); errors.Is(err, io.EOF) {
			return checked
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if !strings.HasPrefix(p.ImportPath, module+"/") {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			files = append(files, must.Get(parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution))(t))
		}
		info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
		conf := types.Config{Importer: importerFunc(func(path string) (*types.Package, error) {
			if p := ours[path]; p != nil {
				return p, nil
			}
			return foreign.Import(path)
		})}
		if ours[p.ImportPath], err = conf.Check(p.ImportPath, fset, files, info); err != nil {
			t.Fatal(err)
		}
		checked[strings.TrimPrefix(p.ImportPath, module+"/")] = info
	}
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

// oneImplementation lists interfaces that may have a single implementation, with the reason.
func oneImplementation() map[string]string {
	return map[string]string{
		"proxy/authz.immutable": "users come from whoever authenticates; proxy/authn, a sibling, makes those that never change",
	}
}

// An interface with one implementation, or a func field that returns any, is a detour for readers.
func TestNoDetours(t *testing.T) {
	all := shipped(t)
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
	reasons := oneImplementation()
	for name, n := range named {
		i, ok := n.Underlying().(*types.Interface)
		if !ok {
			continue
		}
		var by []string
		for other, o := range named {
			if !types.IsInterface(o) && (types.Implements(o, i) || types.Implements(types.NewPointer(o), i)) {
				by = append(by, other)
			}
		}
		if len(by) == 1 && reasons[name] == "" {
			t.Errorf("%s has one implementation, %s: use it, or a func", name, by[0])
		} else if len(by) != 1 && reasons[name] != "" {
			t.Errorf("%s has %d implementations: take it off the list", name, len(by))
		}
		delete(reasons, name)
	}
	for name := range reasons {
		t.Errorf("%s is not an interface: take it off the list", name)
	}
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
