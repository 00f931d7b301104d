package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// mutant is a change to a file: text before and after the code, which stays. So many mutants fit
// into one binary. $ in the text stands for the mutant's number, which selects it.
type mutant struct {
	file, code, to string // as in the list; file includes the function's name
	place          string // file:line, for people
	name           string // of the file, as the compiler has it
	at, end        int    // offsets of the code
	before, after  string
	number         int
}

// key identifies the mutant in the list: by text, because lines move.
func (m *mutant) key() string { return m.file + ": " + m.code + " → " + m.to }

// maker collects the mutants of a file.
type maker struct {
	in     *folder
	src    []byte
	name   string // relative to the root
	inside string // the function
	found  []*mutant
	seen   map[string]int
}

func (m *maker) offset(p token.Pos) int { return m.in.Fset.Position(p).Offset }

func (m *maker) text(n ast.Node) string { return string(m.src[m.offset(n.Pos()):m.offset(n.End())]) }

func (m *maker) add(n ast.Node, to, before, after string) {
	oneLine := func(s string) string {
		if s = strings.Join(strings.Fields(s), " "); len(s) > 100 {
			s = strings.ToValidUTF8(s[:100], "") + "…"
		}
		return s
	}
	pos := m.in.Fset.Position(n.Pos())
	x := &mutant{
		file: strings.TrimSpace(m.name + " " + m.inside), code: oneLine(m.text(n)), to: oneLine(to),
		place: fmt.Sprintf("%s:%d", m.name, pos.Line), name: pos.Filename,
		at: pos.Offset, end: m.offset(n.End()), before: before, after: after,
	}
	key := x.key()
	if m.seen[key]++; m.seen[key] > 1 {
		x.to += fmt.Sprintf(" (%d)", m.seen[key]) // the same code occurs in the function again
	}
	m.found = append(m.found, x)
}

// either makes n evaluate as other when the mutant is on. Both are boolean, and only one of them is evaluated.
func (m *maker) either(n ast.Node, other string) {
	m.add(n, other, "(!mutant($) && (", ") || mutant($) && ("+other+"))")
}

func (m *maker) visit(n ast.Node, stack []ast.Node) bool {
	if e, ok := n.(ast.Expr); ok && m.value(e) != nil {
		m.constant(e, stack)
		return false
	}
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok == token.VAR
	case *ast.FuncDecl:
		m.inside = n.Name.Name
		if n.Recv != nil {
			m.inside = strings.Trim(types.ExprString(n.Recv.List[0].Type), "*") + "." + m.inside
		}
	case *ast.ArrayType:
		return false
	case *ast.BinaryExpr:
		m.binary(n)
	case *ast.IfStmt:
		m.negate(n.Cond)
	case *ast.ForStmt:
		m.negate(n.Cond)
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt, *ast.AssignStmt:
		return m.drop(n.(ast.Stmt), stack[len(stack)-1])
	case *ast.ReturnStmt:
		m.zero(n)
	case *ast.KeyValueExpr:
		if v := m.field(n.Key); v != nil && v.IsField() && m.value(n.Value) == nil {
			m.add(n, "dropped", "mutantZero($, ", ")")
			m.found[len(m.found)-1].at = m.offset(n.Value.Pos())
		}
	case *ast.CallExpr:
		f := typeutil.Callee(m.in.TypesInfo, n)
		if f != nil && f.Name() == "Compare" && types.Identical(m.in.TypesInfo.TypeOf(n), types.Typ[types.Int]) {
			m.add(n, "-"+m.text(n), "mutantSign($)*", "")
		}
		return !m.says(f)
	}
	return true
}

func (m *maker) value(e ast.Expr) constant.Value { return m.in.TypesInfo.Types[e].Value }

func (m *maker) field(key ast.Expr) *types.Var {
	if id, ok := key.(*ast.Ident); ok {
		v, _ := m.in.TypesInfo.Uses[id].(*types.Var)
		return v
	}
	return nil
}

// says reports whether f only produces text: of logs and errors.
func (m *maker) says(f types.Object) bool {
	if f == nil || f.Pkg() == nil {
		return false
	}
	return slices.Contains([]string{"log/slog", "k8s.io/klog/v2", "fmt", "errors", "k8s.io/apimachinery/pkg/util/validation/field"}, f.Pkg().Path())
}

func (m *maker) binary(n *ast.BinaryExpr) {
	x, y := m.text(n.X), m.text(n.Y)
	swap := map[token.Token]string{token.EQL: "!=", token.NEQ: "==", token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
	switch op := swap[n.Op]; {
	case op != "":
		m.either(n, x+" "+op+" "+y)
	case n.Op == token.LAND:
		m.either(n, x+" || "+y)
		m.either(n, x)
	case n.Op == token.LOR:
		m.either(n, x+" && "+y)
		m.either(n, x)
	}
}

func (m *maker) negate(cond ast.Expr) {
	if _, ok := ast.Unparen(cond).(*ast.BinaryExpr); !ok && cond != nil && m.value(cond) == nil {
		m.either(cond, "!("+m.text(cond)+")")
	}
}

func (m *maker) drop(s ast.Stmt, parent ast.Node) bool {
	if x, ok := s.(*ast.ExprStmt); ok {
		if call, ok := x.X.(*ast.CallExpr); ok && m.says(typeutil.Callee(m.in.TypesInfo, call)) {
			return false
		}
	}
	if a, ok := s.(*ast.AssignStmt); ok && (a.Tok == token.DEFINE || types.ExprString(a.Lhs[0]) == "_") {
		return true
	}
	var body []ast.Stmt
	switch p := parent.(type) {
	case *ast.BlockStmt:
		body = p.List
	case *ast.CaseClause:
		body = p.Body
	case *ast.CommClause:
		body = p.Body
	}
	if slices.Contains(body, s) {
		m.add(s, "dropped", "if !mutant($) { ", " }")
	}
	return true
}

// zero replaces a returned condition by false and a returned error by nil.
func (m *maker) zero(n *ast.ReturnStmt) {
	for _, r := range n.Results {
		t := m.in.TypesInfo.TypeOf(r)
		if basic, ok := t.(*types.Basic); ok && basic.Info()&types.IsBoolean != 0 && m.value(r) == nil {
			m.add(r, "false", "(!mutant($) && (", "))")
		}
		if types.Identical(t, types.Universe.Lookup("error").Type()) {
			m.add(r, "nil", "mutantZero[error]($, ", ")")
		}
	}
}

// constant makes a number larger and smaller by one, doubles a duration or a number from 1000, and negates a boolean.
func (m *maker) constant(e ast.Expr, stack []ast.Node) {
	tv := m.in.TypesInfo.Types[e]
	switch p := stack[len(stack)-1].(type) {
	case *ast.CallExpr:
		if types.ExprString(p.Fun) == "make" {
			return // capacities do not affect behaviour
		}
	case *ast.BinaryExpr:
		if p.Op == token.EQL || p.Op == token.NEQ {
			return // negating it changes more
		}
	case *ast.CompositeLit:
		return // a table is data
	case *ast.KeyValueExpr:
		if m.value(p.Key) != nil {
			return
		}
	}
	typ := types.TypeString(types.Default(tv.Type), func(p *types.Package) string {
		if p == m.in.Types {
			return ""
		}
		return p.Name()
	})
	code := m.text(e)
	if _, ok := e.(*ast.BinaryExpr); ok {
		code = "(" + code + ")"
	}
	pick := func(other string) { m.add(e, other, "mutantPick($, "+typ+"(", "), "+typ+"("+other+"))") }
	switch v := constant.ToInt(tv.Value); {
	case tv.Value.Kind() == constant.Bool:
		pick("!" + code)
	case v.Kind() != constant.Int:
	case typ == "time.Duration" && constant.Sign(v) == 0:
	case typ == "time.Duration" || constant.Compare(v, token.GEQ, constant.MakeInt64(1000)):
		pick("2 * " + code)
	default:
		pick(code + " + 1")
		if constant.Sign(v) > 0 {
			pick(code + " - 1")
		}
	}
}
