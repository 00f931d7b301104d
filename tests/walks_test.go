package tests

import (
	"go/ast"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// The walks of docs/architecture.md lead through the code by the names of functions, pkg.Func and pkg.Type.Method: each is declared, so that
// a walk still leads somewhere when the code has moved on.
func TestWalksNameWhatExists(t *testing.T) {
	_, all := sources(t)
	declared := map[string]bool{}
	for _, s := range all {
		if s.isTest() {
			continue
		}
		for _, f := range funcs(s) {
			declared[path.Base(s.dir)+"."+receiver(f)+f.Name.Name] = true
		}
	}
	text, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, walks, _ := strings.Cut(string(text), "\n## Walks\n")
	walks, _, _ = strings.Cut(walks, "\n## ")
	name := regexp.MustCompile("`([a-z][a-z0-9]*(?:\\.[A-Za-z][A-Za-z0-9]*){1,2})`")
	sections := strings.Split(walks, "\n### ")[1:]
	if len(sections) != 4 {
		t.Fatalf("%d walks, want one GET, one upgrade, one APIService event and one CA change", len(sections))
	}
	for _, section := range sections {
		title, _, _ := strings.Cut(section, "\n")
		found := name.FindAllStringSubmatch(section, -1)
		if len(found) < 6 {
			t.Errorf("%s: it names %d functions", title, len(found))
		}
		for _, m := range found {
			if !declared[m[1]] {
				t.Errorf("%s: there is no function %s", title, m[1])
			}
		}
	}
}

// receiver is the type that a method belongs to, with a dot; empty: it is a function.
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
