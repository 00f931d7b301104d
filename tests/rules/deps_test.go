package rules

import (
	"go/ast"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Imports form a star: any package may import registry, a parent may import its own child, and cmd imports and wires
// all components. Siblings never import each other, so that each component can be read, tested and replaced alone.
func TestStarOfImports(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		for _, imp := range imports(s) {
			to, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			check.Same(t, "", forbiddenEdge(s, to), "%s imports %s", s.name, to)
		}
	}
}

// forbiddenEdge returns why s may not import the package to. Empty means that it may.
func forbiddenEdge(s source, to string) string {
	inTests := strings.HasPrefix(to, "tests/")
	switch {
	case s.under("tests"):
		return "" // tests see everything
	case s.under("registry/policy") && strings.HasPrefix(to, "internal/"):
		return "" // limits of many callers; nothing is imported from there
	case (slices.ContainsFunc(leaves(), s.under) || s.under("internal")) && !s.ownOrTest(to):
		return "a leaf imports no other package of this module"
	case inTests && s.isTest():
		return "" // real servers come from tests/
	case inTests && s.under("examples"):
		return "" // has throw-away keys and an extension server, as the tests
	case inTests:
		return "what users run contains no test code"
	case strings.HasPrefix(to, "cmd/") && !s.under("cmd"):
		return "cmd is where everything is wired; nothing hangs on it"
	case (to == "registry/documents" || to == "registry/documents/negotiate") && s.under("registry/documents"):
		return "" // common to both kinds of documents
	case leaf(to):
		return ""
	case to == "registry" || path.Dir(to) == s.dir || to == s.dir || s.under("cmd"):
		return ""
	}
	return "siblings never import each other: take a func field in Config and let cmd wire it"
}

// leaves are packages that every component may import, as are those of internal/. They import nothing of this module
// except packages directly below them and, in proxy/h2, those of engineStandsOn.
func leaves() []string {
	return append(engineStandsOn(), "registry/builtin", "registry/bundle", "registry/policy", "proxy/h2", "proxy/h2/engine")
}

// leaf reports whether the package is one of leaves, or of internal/.
func leaf(pkg string) bool {
	return slices.Contains(leaves(), pkg) || strings.HasPrefix(pkg, "internal/")
}

func engineStandsOn() []string {
	return []string{"internal/budget", "internal/hold", "internal/spare", "proxy/h2/wire"}
}

// The engine does no I/O, never blocks, starts no goroutines and never reads the clock: its driver
// does these. So a test can do in a millisecond, and always in the same order, what takes minutes.
// Only the identifiers in words are allowed of other libraries.
func TestEngineDoesNothingByItself(t *testing.T) {
	words := regexp.MustCompile(`^((hpack|wire|budget|hold|spare|atomic|binary|cmp|errors|fmt|maps|slices|strconv)\.\w+|` +
		`http2\.(ClientPreface|ErrCode|Flag|Frame|Setting)\w*|http\.(Handler|(Status|Method|TimeFormat)\w*)|time\.(Duration|Time|Minute|Second|Millisecond)|io\.EOF|sync\.Cond|debug\.Stack)$`)
	fset, all := sources(t)
	files := 0
	for _, s := range all {
		if s.dir != "proxy/h2/engine" || s.isTest() {
			continue
		}
		files++
		names := map[string]bool{}
		for _, imp := range imports(s) {
			names[path.Base(imp)] = true
		}
		ast.Inspect(s.tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: starts a goroutine: leave it to the driver", fset.Position(n.Pos()))
			case *ast.UnaryExpr:
				check.Same(t, true, n.Op != token.ARROW, "%s: receives from a channel", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && names[x.Name] && !words.MatchString(x.Name+"."+n.Sel.Name) {
					t.Errorf("%s: %s.%s: not allowed in the engine: leave it to the driver", fset.Position(n.Pos()), x.Name, n.Sel.Name)
				}
			case *ast.CallExpr:
				if f := lastName(called(n)); f == "Wait" || f == "Lock" {
					t.Errorf("%s: blocks", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
	check.Same(t, true, files >= 20, "%d files of the engine, want all", files)
}

// ownOrTest reports whether s may import the package to although s is in a leaf: to is directly below s, the engine and
// its drivers stand on it, or s is a test and to is its own package or in tests/.
func (s source) ownOrTest(to string) bool {
	return path.Dir(to) == s.dir || s.under("proxy/h2") && slices.Contains(engineStandsOn(), to) || s.isTest() && (to == s.dir || strings.HasPrefix(to, "tests/"))
}

// What the tree does not do itself, so that TestStarOfImports could not notice it.
func TestForbiddenEdge(t *testing.T) {
	for _, tt := range []struct{ name, from, to string }{
		{"siblings", "health/probe.go", "certs"},
		{"siblings in tests", "health/probe_test.go", "certs"},
		{"children of one parent", "proxy/backend/pool.go", "proxy/authn"},
		{"a stranger's child", "health/probe.go", "proxy/backend"},
		{"a child and its parent", "proxy/backend/pool.go", "proxy"},
		{"a leaf stands alone", "internal/notify/notify.go", "registry"},
		{"the machine is nobody else's", "health/probe.go", "registry/documents"},
		{"nothing hangs on cmd", "proxy/proxy.go", "cmd/fairlead"},
		{"no test code in the product", "proxy/proxy.go", "tests/pki"},
		{"nor in its command", "cmd/fairlead/serve.go", "tests/pki"},
	} {
		check.Same(t, true, forbiddenEdge(source{name: tt.from, dir: path.Dir(tt.from)}, tt.to) != "", "%s: %s may import %s", tt.name, tt.from, tt.to)
	}
}

// The process that holds the front-proxy key must not link kubectl's code: its subcommands for people are in
// kubectl-fairlead, which forwards nothing. Nor may it link debug pages that nothing serves (gRPC's).
func TestUnwantedPackages(t *testing.T) {
	kubectl := []string{"k8s.io/cli-runtime/", "k8s.io/kubectl/", "sigs.k8s.io/kustomize/"}
	if found := packagesOf(t, "fairlead", append(kubectl, "golang.org/x/net/trace")...); len(found) > 0 {
		t.Errorf("cmd/fairlead links %s", strings.Join(found, ", "))
	}
	if found := packagesOf(t, "kubectl-fairlead", module+"/proxy", module+"/health"); len(found) > 0 {
		t.Errorf("cmd/kubectl-fairlead links %s", strings.Join(found, ", "))
	}
	check.Same(t, true, len(packagesOf(t, "kubectl-fairlead", kubectl...)) != 0, "cmd/kubectl-fairlead links no kubectl code: this test looks for the wrong packages")
}

// packagesOf returns the unwanted packages of a command that is built as in the Makefile.
func packagesOf(t *testing.T, command string, unwanted ...string) []string {
	t.Helper()
	return slices.DeleteFunc(deps(t, "-tags=grpcnotrace", "./cmd/"+command), func(p string) bool {
		return !slices.ContainsFunc(unwanted, func(prefix string) bool { return strings.HasPrefix(p, prefix) })
	})
}

// deps returns the lines of go list for packages and all that they link.
func deps(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, args...)...)
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	return strings.Split(string(must.Get(cmd.Output())(t)), "\n")
}

// The image is built from every folder that its programs are made of: .dockerignore leaves out what it does not name.
func TestImageHasItsSources(t *testing.T) {
	named := strings.Split(string(must.Get(os.ReadFile("../../.dockerignore"))(t)), "\n")
	ours := 0
	for _, p := range deps(t, "./cmd/...") {
		if folder, found := strings.CutPrefix(p, module+"/"); found {
			ours++
			folder, _, _ = strings.Cut(folder, "/")
			check.Same(t, true, slices.Contains(named, "!"+folder), ".dockerignore leaves out %s, which cmd links", p)
		}
	}
	check.Same(t, true, ours >= 20, "%d packages of this module, want all", ours)
}

func imports(s source) (paths []string) {
	for _, i := range s.tree.Imports {
		paths = append(paths, strings.Trim(i.Path.Value, `"`))
	}
	return paths
}

// Each direct dependency is justified in docs/decisions, and all Kubernetes libraries have one version.
func TestDirectModules(t *testing.T) {
	const decision = "docs/decisions/0001-direct-dependencies.md"
	read := func(file string) string { return string(must.Get(os.ReadFile("../../" + file))(t)) }
	var direct, reasons []string
	staging := map[string][]string{} // :: version → modules
	for _, m := range regexp.MustCompile(`(?m)^(?:require |\t)(\S+) (v\S+)(.*// indirect)?`).FindAllStringSubmatch(read("go.mod"), -1) {
		if m[3] == "" {
			direct = append(direct, m[1])
		}
		if strings.HasPrefix(m[1], "k8s.io/") && strings.HasPrefix(m[2], "v0.") && !strings.Contains(m[2], "-") {
			staging[m[2]] = append(staging[m[2]], m[1])
		}
	}
	list, _, _ := strings.Cut(read(decision), "**Decided:**")
	for _, m := range regexp.MustCompile("`([a-z0-9.]+\\.[a-z]+/[^`]+)`").FindAllStringSubmatch(list, -1) {
		reasons = append(reasons, m[1])
	}
	slices.Sort(direct)
	slices.Sort(reasons)
	check.Same(t, direct, reasons, "modules with a reason in "+decision)
	check.Same(t, 1, len(staging), "versions of Kubernetes libraries: %v", staging)
}

// permissive reports whether a text is a licence that linked modules may have.
func permissive(text string) bool {
	text = strings.Join(strings.Fields(strings.ToLower(text)), " ")
	return slices.ContainsFunc([][]string{ // what only they say
		{"apache license", "version 2.0"},
		{"permission is hereby granted, free of charge", "the software is provided"},                       // MIT
		{"permission to use, copy, modify, and/or distribute this software"},                               // ISC
		{"redistribution and use in source and binary forms, with or without modification, are permitted"}, // BSD
		{"this is free and unencumbered software released into the public domain"},                         // Unlicense
	}, func(says []string) bool {
		return !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(text, s) })
	})
}

// Every linked module has a permissive licence.
func TestLicences(t *testing.T) {
	modules := map[string]string{} // :: path → folder
	for _, line := range deps(t, "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", "./cmd/...") {
		if path, dir, found := strings.Cut(line, " "); found {
			modules[path] = dir
		}
	}
	must.Be(t, len(modules) >= 20, "only %d modules were found", len(modules))
	for path, dir := range modules {
		check.Same(t, true, licensed(t, dir), "%s: no known licence in %s: read it, and add it to the list or drop the module", path, dir)
	}
}

// licensed reports whether a module's folder has the text of a permissive licence.
func licensed(t *testing.T, dir string) bool {
	t.Helper()
	return slices.ContainsFunc(must.Get(os.ReadDir(dir))(t), func(f os.DirEntry) bool {
		name := strings.ToUpper(f.Name())
		if !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") && name != "UNLICENSE" {
			return false
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name())) // it may be a folder
		return err == nil && permissive(string(text))
	})
}

// lastName returns what follows the last dot of a function's name.
func lastName(f string) string { return f[strings.LastIndexByte(f, '.')+1:] }
