package tests

import (
	"cmp"
	"go/ast"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// The walks of docs/architecture.md and docs/first-change.md name functions as pkg.Func and
// pkg.Type.Method. All are declared, so that walks stay correct when code moves.
func TestWalksNameWhatExists(t *testing.T) {
	declared, _ := functions(t)
	sections := strings.Split(section(t, "architecture.md", "Walks"), "\n### ")[1:]
	if len(sections) != 4 {
		t.Fatalf("%d walks, want one GET, one upgrade, one APIService event and one CA change", len(sections))
	}
	for _, section := range append(sections, section(t, "first-change.md", "The walk of a request")) {
		title, _, _ := strings.Cut(section, "\n")
		found := function().FindAllStringSubmatch(section, -1)
		if len(found) < 6 {
			t.Errorf("%s: it names only %d functions", title, len(found))
		}
		for _, m := range found {
			if declared[m[1]] == "" {
				t.Errorf("%s: there is no function %s", title, m[1])
			}
		}
	}
}

// The rows of "One of each" name existing functions, in the files that they name, and tests, which
// TestPagesNameWhatExists looks for.
func TestOneOfEachNamesWhatExists(t *testing.T) {
	declared, _ := functions(t)
	text := section(t, "architecture.md", "One of each")
	for _, m := range function().FindAllStringSubmatch(text, -1) {
		if at := declared[m[1]]; at == "" || m[2] != "" && m[2] != at {
			t.Errorf("there is no function %s in %s", m[1], cmp.Or(m[2], "any file"))
		}
	}
	rows := 0
	for line := range strings.Lines(text) {
		columns := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || columns[0] == "| what" {
			continue
		}
		rows++
		if len(columns) != 3 || !function().MatchString(columns[1]) || !strings.Contains(columns[2], "`Test") {
			t.Errorf("no function, or no test: %s", line)
		}
	}
	if rows < 11 {
		t.Errorf("%d rows, want at least 11", rows)
	}
}

// function matches names of functions, with their file if it follows.
func function() *regexp.Regexp {
	return regexp.MustCompile("`([a-z][a-z0-9]*(?:\\.[A-Za-z][A-Za-z0-9]*){1,2})`(?: \\(`([^`]+)`\\))?")
}

// functions returns all functions outside test files, with their files, and the names of all tests.
func functions(t *testing.T) (declared map[string]string, tests map[string]bool) {
	t.Helper()
	_, all := sources(t)
	declared, tests = map[string]string{}, map[string]bool{}
	for _, s := range all {
		for _, f := range funcs(s) {
			if s.isTest() {
				tests[f.Name.Name] = true
			} else {
				declared[path.Base(s.dir)+"."+receiver(f)+f.Name.Name] = s.name
			}
		}
	}
	return declared, tests
}

// section returns what is below a title of a page of docs.
func section(t *testing.T, page, title string) string {
	t.Helper()
	_, below, _ := strings.Cut(string(must.Get(os.ReadFile("../docs/"+page))(t)), "\n## "+title+"\n")
	below, _, _ = strings.Cut(below, "\n## ")
	return below
}

// receiver returns a method's type with a dot, or "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	name := ""
	ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name + "."
		}
		return name == ""
	})
	return name
}
