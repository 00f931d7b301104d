package loops

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/callgraph/vta"
	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

const module = "github.com/fairlead-proxy/fairlead"

// program is what runs in one process, in SSA form.
type program struct {
	root    string // directory of the module
	fset    *token.FileSet
	ours    map[*ssa.Function]bool // those with bodies: the module's
	called  map[*ssa.Function]bool // those that some function calls
	callees map[ssa.CallInstruction][]*ssa.Function
	stores  map[field][]ssa.Value // functions that are stored into fields

	expensive  map[token.Pos]bool // functions marked so, by the position of their names
	boundaries map[string]*boundary
}

// boundary is a directive //fairlead:boundary REASON.
type boundary struct {
	at      string // file:line of what it is about
	reason  string
	crossed bool
}

const (
	expensiveMark = "//fairlead:expensive"
	boundaryMark  = "//fairlead:boundary"
)

// load reads the packages of the process. overlay replaces files, by absolute names.
func load(root string, overlay map[string][]byte) (*program, error) {
	cfg := &packages.Config{Mode: packages.LoadSyntax, Dir: root, Overlay: overlay, Env: append(os.Environ(), "GOOS=linux")}
	pkgs, err := packages.Load(cfg, "./cmd/fairlead/...", "./proxy/...", "./registry/...", "./internal/...", "./certs/...", "./health/...")
	if err != nil {
		return nil, fmt.Errorf("loading packages: %w", err)
	}
	p := &program{
		root: root, ours: map[*ssa.Function]bool{}, called: map[*ssa.Function]bool{}, callees: map[ssa.CallInstruction][]*ssa.Function{},
		stores: map[field][]ssa.Value{}, expensive: map[token.Pos]bool{}, boundaries: map[string]*boundary{},
	}
	for _, pkg := range pkgs {
		for _, e := range pkg.Errors {
			return nil, fmt.Errorf("loading %s: %w", pkg.PkgPath, e)
		}
		p.fset = pkg.Fset
		for _, f := range pkg.Syntax {
			p.directives(f)
		}
	}
	prog, _ := ssautil.Packages(pkgs, ssa.InstantiateGenerics)
	prog.Build()
	all := ssautil.AllFunctions(prog)
	maps.DeleteFunc(all, func(f *ssa.Function, _ bool) bool { return isGeneric(f) }) // their instances are walked
	for f := range all {
		if len(f.Blocks) > 0 {
			p.ours[f] = true
			p.collect(f)
		}
	}
	for _, node := range vta.CallGraph(all, nil).Nodes {
		for _, e := range node.Out {
			if e.Site != nil {
				p.called[e.Callee.Func] = true
				p.callees[e.Site] = append(p.callees[e.Site], e.Callee.Func)
			}
		}
	}
	return p, nil
}

// isGeneric reports whether a function still has type parameters.
func isGeneric(f *ssa.Function) bool {
	return f.TypeParams().Len() > len(f.TypeArgs()) || slices.ContainsFunc(f.TypeArgs(), func(t types.Type) bool {
		_, is := types.Unalias(t).(*types.TypeParam)
		return is
	})
}

// directives collects the directives of a file.
func (p *program) directives(f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Doc != nil {
			p.expensive[fn.Name.Pos()] = slices.ContainsFunc(fn.Doc.List, func(c *ast.Comment) bool { return c.Text == expensiveMark })
		}
	}
	code := map[int]bool{} // lines on which something begins
	ast.Inspect(f, func(n ast.Node) bool {
		switch n.(type) {
		case nil, *ast.Comment, *ast.CommentGroup:
			return false
		}
		code[p.fset.Position(n.Pos()).Line] = true
		return true
	})
	for _, g := range f.Comments {
		for _, c := range g.List {
			if reason, ok := strings.CutPrefix(c.Text, boundaryMark); ok {
				where := p.fset.Position(c.Pos())
				if !code[where.Line] { // a line of its own
					where.Line++
				}
				b := &boundary{at: p.place(where), reason: strings.TrimSpace(reason)}
				p.boundaries[b.at] = b
			}
		}
	}
}

// at returns the line of a position, its file relative to the module.
func (p *program) at(pos token.Pos) string { return p.place(p.fset.Position(pos)) }

func (p *program) place(where token.Position) string {
	if name, err := filepath.Rel(p.root, where.Filename); err == nil {
		where.Filename = name
	}
	return fmt.Sprintf("%s:%d", where.Filename, where.Line)
}

// field is a field of a struct.
type field struct {
	of    string
	index int
}

func fieldOf(a *ssa.FieldAddr) field { return field{a.X.Type().String(), a.Field} }

// collect notes the functions that f stores into fields.
func (p *program) collect(f *ssa.Function) {
	for _, b := range f.Blocks {
		for _, instr := range b.Instrs {
			if st, ok := instr.(*ssa.Store); ok && isFunc(st.Val) {
				if a, ok := st.Addr.(*ssa.FieldAddr); ok {
					p.stores[fieldOf(a)] = append(p.stores[fieldOf(a)], st.Val)
				}
			}
		}
	}
}

func isFunc(x ssa.Value) bool {
	_, ok := x.Type().Underlying().(*types.Signature)
	return ok
}

// functions returns the functions that a value may be where the graph knows nothing, because it
// comes from another module. It reports false if these are not all.
func (p *program) functions(x ssa.Value, depth int) (fns []*ssa.Function, ok bool) {
	const deepest = 8 // more is a cycle
	if depth > deepest {
		return nil, false
	}
	all := func(list []ssa.Value) ([]*ssa.Function, bool) {
		ok := true
		for _, s := range list {
			more, known := p.functions(s, depth+1)
			fns, ok = append(fns, more...), ok && known
		}
		return fns, ok
	}
	switch x := x.(type) {
	case *ssa.Const: // nil
		return nil, true
	case *ssa.Function:
		return []*ssa.Function{x}, true
	case *ssa.MakeClosure:
		return p.functions(x.Fn, depth+1)
	case *ssa.ChangeType:
		return p.functions(x.X, depth+1)
	case *ssa.Phi:
		return all(x.Edges)
	case *ssa.Extract:
		return p.functions(x.Tuple, depth+1)
	case *ssa.Parameter:
		return nil, !p.called[x.Parent()] // nobody calls it
	case *ssa.Call: // what another module returns may call what it was given
		f := x.Call.StaticCallee()
		if f == nil || p.ours[f] {
			return nil, false
		}
		if elsewhere[name(f)] {
			return nil, true
		}
		fns, ok := all(slices.DeleteFunc(slices.Clone(x.Call.Args), func(a ssa.Value) bool { return !isFunc(a) }))
		return fns, ok && verdict(f) == ""
	case *ssa.UnOp:
		if a, isField := x.X.(*ssa.FieldAddr); isField && x.Op == token.MUL {
			return all(p.stores[fieldOf(a)])
		}
	}
	return nil, false
}
