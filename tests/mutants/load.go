package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// folder is a package with all its mutants.
type folder struct {
	dir      string // from the root
	fset     *token.FileSet
	names    []string // of its files
	src      map[string][]byte
	trees    []*ast.File
	pkg      *types.Package
	info     types.Info
	importer types.Importer
	mutants  []*mutant
}

// load reads the packages. The types of their imports come from the compiler.
func load(ctx context.Context) ([]*folder, error) {
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export,DepOnly"}
	for _, dir := range slices.Sorted(maps.Keys(closest())) {
		args = append(args, "./"+dir)
	}
	list := exec.CommandContext(ctx, "go", args...)
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := list.Start(); err != nil {
		return nil, err
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	fset, exports := token.NewFileSet(), map[string]string{}
	types := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var all []*folder
	for d := json.NewDecoder(out); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
			DepOnly                 bool
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, list.Wait()
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if p.DepOnly {
			continue
		}
		f := &folder{fset: fset, importer: types, src: map[string][]byte{}}
		if f.dir, err = filepath.Rel(root, p.Dir); err != nil {
			return nil, err
		}
		for _, name := range p.GoFiles {
			f.names = append(f.names, filepath.Join(p.Dir, name))
		}
		if err := f.read(p.ImportPath); err != nil {
			return nil, fmt.Errorf("reading %s: %w", f.dir, err)
		}
		all = append(all, f)
	}
}

func (f *folder) read(path string) error {
	for _, name := range f.names {
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		tree, err := parser.ParseFile(f.fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		f.src[name] = src
		f.trees = append(f.trees, tree)
	}
	f.info = types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: f.importer}
	var err error
	if f.pkg, err = conf.Check(path, f.fset, f.trees, &f.info); err != nil {
		return err
	}
	seen := map[string]int{}
	for i, name := range f.names {
		m := maker{in: f, src: f.src[name], name: filepath.Join(f.dir, filepath.Base(name)), seen: seen}
		for _, d := range f.trees[i].Decls {
			m.inside = ""
			ast.PreorderStack(d, nil, m.visit)
		}
		f.mutants = append(f.mutants, m.found...)
	}
	return nil
}
