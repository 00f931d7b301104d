package loops

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const entry = "(*proxy/h2.loop).run" // where a loop begins

// Nothing blocks and nothing is expensive on a loop, nor under a mutex that a loop takes.
func TestLoopsNeverWait(t *testing.T) {
	w := run(must.Get(load(must.Get(filepath.Abs("../../.."))(t), nil))(t), entry)
	for _, f := range slices.Sorted(maps.Keys(w.found)) {
		t.Errorf("%s\n\t%s", f, strings.Join(w.found[f], "\n\t"))
	}
	reached := map[string]bool{}
	for s := range w.seen {
		if s.loop || s.held&shardMutex != 0 {
			reached[name(s.fn)] = true
		}
	}
	// Some twenty-five functions take a shard's mutex, shard.turn for others, and nine hundred run there: many fewer
	// means that the walk has lost its way.
	t.Logf("%d functions take a shard's mutex, %d run under it or on a loop", len(w.roots), len(reached))
	if len(w.roots) < 20 || len(reached) < 700 {
		t.Errorf("only %d functions take a shard's mutex, only %d run under it or on a loop", len(w.roots), len(reached))
	}
	for _, f := range []string{
		entry, "(*proxy/h2.loop).takeTurn", "(*proxy/h2/engine.Engine).Feed", "(*proxy/h2/engine.Engine).place", "(*proxy.Proxy).decide", "(*proxy.frames).plan",
		"(*proxy.Proxy).identify", "(*proxy.Proxy).authenticate", "(*proxy.Proxy).authorize", "(*proxy.Proxy).dispatch",
		"(*proxy.exchange).finish", "(*registry.Table).Match", "(*proxy/authn.Authenticator).Read", "(*proxy/backend.Upstream).Plan", "(*proxy/accesslog.Log).Add",
	} {
		check.Same(t, true, reached[f], "%s was not reached", f)
	}
	check.Same(t, false, reached["(*proxy.Proxy).lookUp"], "what a decision lacks is looked up where it may not wait")
	for _, l := range listed {
		check.Same(t, true, w.taken[l.name], "%s is listed, and never taken", l.name)
	}
	for f := range known {
		check.Same(t, true, w.used[f], "%s is in outside.go, and never called", f)
	}
}

// Whatever is planted into a decision is found, each at its line, and nothing else.
func TestPlanted(t *testing.T) {
	root := must.Get(filepath.Abs("../../.."))(t)
	decide, added := filepath.Join(root, "proxy", "decide.go"), filepath.Join(root, "proxy", "planted.go")
	text := must.Get(os.ReadFile("testdata/planted.txt"))(t)
	defer func(was []mutex) { listed = was }(listed)
	listed = append(slices.Insert(slices.Clone(listed), 1, mutex{name: "proxy.early.mu"}), mutex{name: "proxy.last.mu", leaf: true})
	w := run(must.Get(load(root, map[string][]byte{decide: plant(t, decide), added: text}))(t), entry)
	want := map[string]string{}
	for i, line := range strings.Split(string(text), "\n") {
		if _, finding, ok := strings.Cut(line, "// want "); ok {
			want[fmt.Sprintf("proxy/planted.go:%d", i+1)] = finding
		}
		switch _, reason, ok := strings.Cut(line, boundaryMark); {
		case ok && reason == "":
			want[fmt.Sprintf("proxy/planted.go:%d", i+1)] = "a boundary without a reason"
		case strings.HasSuffix(reason, "nothing is here"):
			want[fmt.Sprintf("proxy/planted.go:%d", i+1)] = "a boundary that nothing crosses"
		}
	}
	hit, slept := map[string]bool{}, false
	for f := range w.found {
		at, text, _ := strings.Cut(f, ": ")
		switch {
		case strings.HasPrefix(at, "proxy/decide.go:"):
			slept = slept || strings.Contains(text, "calls time.Sleep")
		case !strings.HasPrefix(at, "proxy/planted.go:"):
		case want[at] == "" || !strings.HasPrefix(text, want[at]):
			t.Errorf("%s, want %q", f, want[at])
		default:
			hit[at] = true
		}
	}
	for at, finding := range want {
		check.Same(t, true, hit[at], "%s: not found: %s", at, finding)
	}
	check.Same(t, true, slept, "a Sleep as the second statement of Proxy.decide was not found")
}

// plant returns a file with a Sleep and a call of planted as the second statements of Proxy.decide.
func plant(t *testing.T, file string) []byte {
	text := must.Get(os.ReadFile(file))(t)
	fset := token.NewFileSet()
	tree := must.Get(parser.ParseFile(fset, file, text, 0))(t)
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "decide" && f.Recv != nil {
			at := fset.Position(f.Body.List[1].Pos()).Offset
			return []byte(string(text[:at]) + "time.Sleep(1); planted(); " + string(text[at:]))
		}
	}
	t.Fatal("no method decide in " + file)
	return nil
}
