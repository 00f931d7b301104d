package rules

import (
	"cmp"
	"go/ast"
	"go/doc"
	"go/types"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// The budgets that no linter has; .golangci.yml has those of files and functions. They limit the
// largest, because that is where code becomes hard to read. CONTRIBUTING.md says what to aim for.
const (
	maxImports          = 20
	maxExported         = 15
	maxRegistryExported = 20 // all other packages share the names of the table instead of having their own
	// The engine has the names of plans, and those that its driver uses.
	maxEngineExported = 20
	maxNewParams      = 2
	maxColumns        = 120
	tabWidth          = 4
)

func TestFileBudget(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		if n := len(s.tree.Imports); n > maxImports {
			t.Errorf("%s: %d imports, at most %d: it does too many things", s.name, n, maxImports)
		}
		want := "Command " + path.Base(s.dir) // of other packages godoclint knows it
		if s.tree.Name.Name == "main" && s.tree.Doc != nil && !strings.HasPrefix(s.tree.Doc.Text(), want) {
			t.Errorf("%s: package documentation does not begin with %q", s.name, want)
		}
		for _, f := range funcs(s) {
			if n := f.Type.Params.NumFields(); !s.isTest() && f.Recv == nil && strings.HasPrefix(f.Name.Name, "New") && n > maxNewParams {
				t.Errorf("%s: %s takes %d parameters, at most %d: ctx and a Config", s.name, f.Name.Name, n, maxNewParams)
			}
		}
	}
}

// Lines of what ships, of examples and of comments are short, so that the eye finds the next one.
func TestLineWidth(t *testing.T) {
	walk(t, func(name string, text []byte) {
		if !strings.HasSuffix(name, ".go") {
			return
		}
		root, _, _ := strings.Cut(name, "/")
		ships := !strings.HasSuffix(name, "_test.go") && root != "tests"
		for i, line := range strings.Split(string(text), "\n") {
			code := strings.TrimLeft(line, "\t")
			words, comment := strings.CutPrefix(code, "// ")
			if comment && (strings.HasPrefix(words, " ") || !strings.Contains(words, " ")) || !comment && !ships { // a list, code or one long word
				continue
			}
			if n := tabWidth*(len(line)-len(code)) + utf8.RuneCountInString(code); n > maxColumns {
				t.Errorf("%s:%d: a line of %d columns, at most %d", name, i+1, n, maxColumns)
			}
		}
	})
}

func TestExportedBudget(t *testing.T) {
	fset, all := sources(t)
	files := map[string][]*ast.File{}
	for _, s := range all {
		if !s.isTest() {
			files[s.dir] = append(files[s.dir], s.tree)
		}
	}
	for dir, trees := range files {
		budget := maxExported
		switch dir {
		case "registry":
			budget = maxRegistryExported
		case "proxy/h2/engine":
			budget = maxEngineExported
		}
		names := exportedNames(must.Get(doc.NewFromFiles(fset, trees, module+"/"+dir))(t))
		check.Same(t, true, len(names) <= budget, "%s exports %d names, at most %d: %s", dir, len(names), budget, strings.Join(names, ", "))
	}
}

// exportedNames lists the package-level names that other packages see. A const block counts as one
// name if all have one type or first word: readers learn that.
func exportedNames(p *doc.Package) (names []string) {
	add := func(funcs []*doc.Func, vars, consts []*doc.Value, typ string) {
		for _, f := range funcs {
			names = append(names, f.Name)
		}
		for _, v := range vars {
			names = append(names, v.Names...)
		}
		for _, v := range consts {
			block := map[string]bool{}
			for _, name := range v.Names {
				first := regexp.MustCompile(`^.[^A-Z]*`).FindString(name)
				block["constants of "+cmp.Or(typ, first)] = true
			}
			names = slices.AppendSeq(names, maps.Keys(block))
		}
	}
	add(p.Funcs, p.Vars, p.Consts, "")
	for _, t := range p.Types {
		names = append(names, t.Name)
		add(t.Funcs, t.Vars, t.Consts, t.Name)
	}
	return names
}

// Every exported field has a comment; adjacent lines may share one. Other names are revive's part (.golangci.yml).
func TestExportedFieldDoc(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.tree, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				return !ok
			}
			if st, ok := spec.Type.(*ast.StructType); ok {
				var above *ast.Field
				for _, field := range st.Fields.List {
					shares := above != nil && field.Pos() == above.End()+2
					if field.Doc == nil && field.Comment == nil && !shares && len(field.Names) > 0 && field.Names[0].IsExported() {
						t.Errorf("%s: field %s.%s has no comment", fset.Position(field.Pos()), spec.Name.Name, field.Names[0].Name)
					}
					if above = nil; field.Doc != nil || shares {
						above = field
					}
				}
			}
			return false
		})
	}
}

// Marketing words, untracked TODOs, and traces of one developer's machine.
func TestProse(t *testing.T) {
	rules := []struct {
		re  *regexp.Regexp
		why string
	}{
		{regexp.MustCompile(`(?i)\b(blazing(ly)?|seamless(ly)?|effortless(ly)?|leverag(e|es|ing)|utili[sz](e|es|ing)|cutting[- ]edge|state[- ]of[- ]the[- ]art|world[- ]class|battle[- ]tested|production[- ]ready|enterprise[- ]grade)\b`), "claims; give the number instead"},
		{regexp.MustCompile(`(//|#|<!--) *(TODO|FIXME|XXX|HACK)\b(\(#\d+\))?`), "only TODO(#n) is tracked"},
		{regexp.MustCompile(`/(home|Users|root)/\w`), "a path of one machine"},
	}
	walk(t, func(name string, text []byte) {
		if name == "tests/rules/style_test.go" || name == "CONTRIBUTING.md" {
			return
		}
		for _, r := range rules {
			for _, hit := range r.re.FindAllIndex(text, -1) {
				word := string(text[hit[0]:hit[1]])
				check.Same(t, true, strings.Contains(word, "TODO(#"), "%s:%d: %q: %s", name, 1+strings.Count(string(text[:hit[0]]), "\n"), word, r.why)
			}
		}
	})
}

// A test waits for a condition, or for the clock of a synctest bubble, never for real time.
// Exceptions are the suites below tests, which keep up load for a while, and benchmarks.
func TestNoSleeps(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if !s.isTest() || slices.Contains(imports(s), "testing/synctest") {
			continue
		}
		ast.Inspect(s.tree, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && called(call) == "time.Sleep" {
				t.Errorf("%s: time.Sleep outside a synctest bubble", fset.Position(call.Pos()))
			}
			return true
		})
		ast.Inspect(s.tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				return !s.under("tests") && !strings.HasPrefix(n.Name.Name, "Benchmark")
			case *ast.ForStmt, *ast.CommClause: // it polls, or waits for something else, too
				return false
			case *ast.CallExpr:
				return called(n) != "http.HandlerFunc" // a server may be slow
			case *ast.UnaryExpr:
				if call, ok := n.X.(*ast.CallExpr); ok && called(call) == "time.After" {
					t.Errorf("%s: time.After as a sleep", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

func funcs(s source) []*ast.FuncDecl {
	var out []*ast.FuncDecl
	for _, d := range s.tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			out = append(out, f)
		}
	}
	return out
}

// called returns the called function as the source names it: pkg.Func or x.y.Method.
func called(c *ast.CallExpr) string { return types.ExprString(c.Fun) }
