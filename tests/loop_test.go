package tests

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// Functions marked //fairlead:loop run under a shard's mutex or on its loop, where strangers decide
// how often and with which input. They must not call those marked //fairlead:dear. See
// docs/architecture.md, "What a stranger can cost".
func TestLoopIsCheap(t *testing.T) {
	_, all := sources(t)
	loop, dear := map[string]*ast.FuncDecl{}, map[string]bool{
		// Library functions that block, or cost more than the length of their input.
		"Sleep": true, "Enter": true, "ParseQuery": true, "DecodeParameters": true, "NewRequestInfo": true, "Unmarshal": true, "Marshal": true,
		"MustCompile": true, "Compile": true, "Split": true, "SplitN": true, "CheckSignatureFrom": true, "Sprintf": true,
	}
	for _, s := range all {
		for _, f := range funcs(s) {
			if marked(f, "//fairlead:dear") {
				dear[f.Name.Name] = true
			}
			if marked(f, "//fairlead:loop") {
				loop[s.dir+"."+f.Name.Name] = f
			}
		}
	}
	for _, name := range []string{"registry.Match", "proxy.decide", "proxy.locate", "proxy.parseRequest", "proxy.costly", "proxy/authn.Read"} {
		if loop[name] == nil {
			t.Errorf("%s runs on the loop and is not marked", name)
		}
	}
	for name, f := range loop {
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				return false // off the loop
			case *ast.SendStmt, *ast.SelectStmt:
				t.Errorf("%s runs on the loop and waits for a channel", name)
			case *ast.UnaryExpr:
				if n.Op == token.ARROW {
					t.Errorf("%s runs on the loop and waits for a channel", name)
				}
			case *ast.CallExpr:
				if f := lastName(called(n)); dear[f] {
					t.Errorf("%s runs on the loop and calls %s, which is dear", name, f)
				}
			}
			return true
		})
	}
}

func marked(f *ast.FuncDecl, directive string) bool {
	return f.Doc != nil && slices.ContainsFunc(f.Doc.List, func(c *ast.Comment) bool { return c.Text == directive })
}

// lastName returns what follows the last dot of a function's name.
func lastName(f string) string { return f[strings.LastIndexByte(f, '.')+1:] }
