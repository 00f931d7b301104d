package main

import (
	"go/ast"
	"go/parser"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// helpers is one more file of a changed package. It knows which mutant is on, and lists those that
// a test reaches, each once.
const helpers = `
import (
	mutantfmt "fmt"
	mutantos "os"
	mutantstrconv "strconv"
	mutantatomic "sync/atomic"
)

var (
	mutantOn, _      = mutantstrconv.Atoi(mutantos.Getenv("MUTANT"))
	mutantReached, _ = mutantos.OpenFile(mutantos.Getenv("MUTANT_REACHED"), mutantos.O_APPEND|mutantos.O_WRONLY, 0)
	mutantSeen       [1 << 14]mutantatomic.Bool
)

func mutant(n int) bool {
	if mutantReached != nil && !mutantSeen[n].Swap(true) {
		mutantfmt.Fprintln(mutantReached, n)
	}
	return n == mutantOn
}

func mutantPick[T any](n int, v, other T) T {
	if mutant(n) {
		return other
	}
	return v
}

func mutantZero[T any](n int, v T) T {
	var zero T
	return mutantPick(n, v, zero)
}

func mutantSign(n int) int { return mutantPick(n, 1, -1) }
`

// write returns the changed files by name, with all mutants in them.
func (f *folder) write(mutants []*mutant) map[string][]byte {
	byFile := map[string][]*mutant{}
	for i, m := range mutants {
		m.number = i + 1
		byFile[m.name] = append(byFile[m.name], m)
	}
	files := map[string][]byte{filepath.Join(filepath.Dir(f.CompiledGoFiles[0]), "mutants_in_here.go"): []byte("package " + f.Name + helpers)}
	for name, in := range byFile {
		src := f.src[name]
		slices.SortStableFunc(in, func(a, b *mutant) int { return b.end - b.at - (a.end - a.at) }) // outer ones first: they begin first and end last
		edits := map[int][2]string{}                                                               // :: offset → what ends there, what begins there
		for _, m := range in {
			number := strconv.Itoa(m.number)
			begin := edits[m.at]
			begin[1] += strings.ReplaceAll(m.before, "$", number)
			edits[m.at] = begin
			end := edits[m.end]
			end[0] = strings.ReplaceAll(m.after, "$", number) + end[0]
			edits[m.end] = end
		}
		last := 0
		for _, at := range slices.Sorted(maps.Keys(edits)) {
			files[name] = append(append(files[name], src[last:at]...), edits[at][0]+edits[at][1]...)
			last = at
		}
		files[name] = append(files[name], src[last:]...)
	}
	return files
}

// compiles reports whether the package compiles with m alone. Some mutants never do, such as a
// constant that does not fit its type.
func (f *folder) compiles(m *mutant) bool {
	files := f.write([]*mutant{m})
	var trees []*ast.File
	for i, name := range f.CompiledGoFiles {
		if name != m.name {
			trees = append(trees, f.Syntax[i])
		}
	}
	for name, text := range files {
		tree, err := parser.ParseFile(f.Fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return false
		}
		trees = append(trees, tree)
	}
	conf := types.Config{Importer: f}
	_, err := conf.Check(f.PkgPath, f.Fset, trees, nil)
	return err == nil
}
