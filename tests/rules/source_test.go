package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const module = "github.com/fairlead-proxy/fairlead"

// source is one parsed Go file of this module.
type source struct {
	name string // slash-separated, relative to the root of the repository
	dir  string // its folder: the package's import path below the module; "." is the root
	tree *ast.File
}

func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

// under reports whether the file is in folder or below it.
func (s source) under(folder string) bool {
	return s.dir == folder || strings.HasPrefix(s.dir, folder+"/")
}

// sources parses every Go file of the module, except nested modules, testdata, hidden folders and generated files.
func sources(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	fset := token.NewFileSet()
	var all []source
	walk(t, func(name string, text []byte) {
		if !strings.HasSuffix(name, ".go") {
			return
		}
		tree := must.Get(parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution))(t)
		if !ast.IsGenerated(tree) {
			all = append(all, source{name: name, dir: path.Dir(name), tree: tree})
		}
	})
	must.Be(t, len(all) >= 3, "%d Go files found: the walk is broken", len(all))
	return fset, all
}

// walk calls f with every text file of the module, documents included.
func walk(t *testing.T, f func(name string, text []byte)) {
	t.Helper()
	root := must.Get(os.OpenRoot("../.."))(t)
	defer root.Close()
	must.Do(t, fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := path.Base(name)
			_, err := root.Stat(filepath.Join(name, "go.mod"))
			if name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || err == nil) { // another module
				return fs.SkipDir
			}
			return nil
		}
		if isText(name) {
			f(name, must.Get(fs.ReadFile(root.FS(), name))(t))
		}
		return nil
	}))
}

func isText(name string) bool {
	return slices.Contains([]string{".go", ".md", ".yaml", ".yml", ".json", ".sh", ".txtar"}, path.Ext(name)) ||
		slices.Contains([]string{"Makefile", "Dockerfile"}, path.Base(name))
}
