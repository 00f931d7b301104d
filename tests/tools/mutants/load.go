package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/types"
	"os"
	"path/filepath"

	"golang.org/x/tools/go/packages"
)

// folder is a package with all its mutants.
type folder struct {
	*packages.Package

	dir     string         // from the root
	helped  types.Importer // what only the helpers import
	src     map[string][]byte
	mutants []*mutant
}

// load reads the packages in folders below root, and makes their mutants. The types of their
// imports come from the compiler.
func load(ctx context.Context, root string, folders ...string) ([]*folder, error) {
	const mode = packages.NeedName | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedExportFile | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo
	list, err := packages.Load(&packages.Config{Context: ctx, Dir: root, Mode: mode}, folders...)
	if err != nil {
		return nil, err
	}
	var all []*folder
	helped := importer.Default()
	for _, p := range list {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("reading %s: %w", p.PkgPath, p.Errors[0])
		}
		f := &folder{Package: p, helped: helped, src: map[string][]byte{}}
		if f.dir, err = filepath.Rel(root, filepath.Dir(p.CompiledGoFiles[0])); err != nil {
			return nil, err
		}
		seen := map[string]int{}
		for i, name := range p.CompiledGoFiles {
			if f.src[name], err = os.ReadFile(name); err != nil {
				return nil, err
			}
			m := maker{in: f, src: f.src[name], name: filepath.Join(f.dir, filepath.Base(name)), seen: seen}
			for _, d := range p.Syntax[i].Decls {
				m.inside = ""
				ast.PreorderStack(d, nil, m.visit)
			}
			f.mutants = append(f.mutants, m.found...)
		}
		all = append(all, f)
	}
	return all, nil
}

// Import returns a package that the folder imports, or its helpers.
func (f *folder) Import(path string) (*types.Package, error) {
	for _, p := range f.Types.Imports() {
		if p.Path() == path {
			return p, nil
		}
	}
	return f.helped.Import(path)
}
