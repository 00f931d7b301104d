package rules

import (
	"cmp"
	"go/ast"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// pages returns all documents of the repository, by path from its root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/*/*.md", "../../examples/*/*.md"} {
		for _, file := range must.Get(filepath.Glob(pattern))(t) {
			out[file[len("../../"):]] = string(must.Get(os.ReadFile(file))(t))
		}
	}
	return out
}

// anchor returns the anchor of a title's links.
func anchor(title string) string {
	kept := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(title), "")
	return strings.ReplaceAll(strings.TrimSpace(kept), " ", "-")
}

// A link within the repository leads to an existing file and title.
func TestLinksLead(t *testing.T) {
	all := pages(t)
	link := regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]+))?\)`)
	title := regexp.MustCompile(`(?m)^#+ (.+)$`)
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to := page
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(filepath.Join("../..", to)); err != nil {
				t.Errorf("%s: there is no %s", page, to)
				continue
			}
			titles := title.FindAllStringSubmatch(all[to], -1)
			check.Same(t, true, m[2] == "" || slices.ContainsFunc(titles, func(x []string) bool { return anchor(x[1]) == m[2] }), "%s: there is no title #%s in %s", page, m[2], to)
		}
	}
}

// The index of documents has every page. That of decisions has each with its title, and what amends it.
func TestIndexes(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		dir, name := filepath.Split(page)
		index, entry := all["docs/README.md"], "("+strings.TrimPrefix(page, "docs/")
		switch {
		case name == "README.md" || dir == "docs/runbooks/" || !strings.HasPrefix(dir, "docs/") || strings.HasPrefix(name, "0000"):
			continue
		case dir == "docs/decisions/":
			title, state, _ := strings.Cut(strings.TrimPrefix(text, "# "+name[:4]+": "), "\n\n")
			index, entry = all["docs/decisions/README.md"], "("+name+") "+title
			if m := regexp.MustCompile(`^\S+ (amended by \d{4}(?:, \d{4})*)`).FindStringSubmatch(state); m != nil {
				entry += " (" + m[1] + ")"
			}
			entry += "\n"
		}
		check.Has(t, index, entry)
	}
}

// docs/annotations.md has exactly the existing annotations.
func TestAnnotationsAreDocumented(t *testing.T) {
	source := must.Get(os.ReadFile("../../registry/annotations.go"))(t)
	find := func(expression, text string) (names []string) {
		for _, m := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		return slices.Sorted(slices.Values(names))
	}
	have := find("(?m)^\tcase \"([a-z0-9-]+)\":", string(source))
	have = slices.DeleteFunc(have, func(name string) bool { return name == "true" || name == "false" }) // values of setBool
	if listed := find("(?m)^\\| `([a-z0-9-]+)` \\|", pages(t)["docs/annotations.md"]); len(have) < 12 || !slices.Equal(have, listed) {
		t.Errorf("registry/annotations.go has %v\ndocs/annotations.md %v", have, listed)
	}
}

// Pages name only existing Go files, tests and what packages declare: pkg.Func, pkg.Type.Method,
// which their file may follow. The CHANGELOG may name deleted ones.
func TestPagesNameWhatExists(t *testing.T) {
	_, all := sources(t)
	declared, tests := declarations(t)
	file, test := regexp.MustCompile("`([a-z0-9_/]+/[a-z0-9_]+\\.go)`"), regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	others := []string{"audit.policy", "fairlead.yaml", "status.conditions"} // a value, a file and a field
	name := regexp.MustCompile("`(([a-z][a-z0-9]*)(?:\\.[A-Za-z][A-Za-z0-9]*){1,2})`(?: \\(`([^`]+)`\\))?")
	for page, text := range pages(t) {
		if page == "CHANGELOG.md" {
			continue
		}
		for _, m := range file.FindAllStringSubmatch(text, -1) {
			check.Same(t, true, slices.ContainsFunc(all, func(s source) bool { return s.name == m[1] || strings.HasSuffix(s.name, "/"+m[1]) }), "%s: there is no file %s", page, m[1])
		}
		for _, name := range test.FindAllString(text, -1) {
			check.Same(t, true, tests[name], "%s: there is no test %s", page, name)
		}
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			if at := declared[m[1]]; declared[m[2]] != "" && !slices.Contains(others, m[1]) && (at == "" || m[3] != "" && m[3] != at) {
				t.Errorf("%s: there is no %s in %s", page, m[1], cmp.Or(m[3], "any file"))
			}
		}
	}
}

// declarations returns what the components declare, with its file, and the names of all tests.
func declarations(t *testing.T) (declared map[string]string, tests map[string]bool) {
	t.Helper()
	_, all := sources(t)
	declared, tests = map[string]string{}, map[string]bool{}
	for _, s := range all {
		pkg := path.Base(s.dir)
		if !s.isTest() && !s.under("tests") && !s.under("examples") {
			declared[pkg] = s.dir
		}
		for _, d := range s.tree.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if s.isTest() {
					tests[d.Name.Name] = true
				} else {
					declared[pkg+"."+receiver(d)+d.Name.Name] = s.name
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						declared[pkg+"."+spec.Name.Name] = s.name
					case *ast.ValueSpec:
						declared[pkg+"."+spec.Names[0].Name] = s.name
					}
				}
			}
		}
	}
	return declared, tests
}

// receiver returns a method's type with a dot, or "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	name, _, _ := strings.Cut(types.ExprString(f.Recv.List[0].Type), "[") // of its parameters
	return strings.TrimPrefix(name, "*") + "."
}
