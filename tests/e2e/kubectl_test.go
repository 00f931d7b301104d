//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// testKubectl runs kubectl's everyday commands for each kind.
func testKubectl(t *testing.T, w *world) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			for _, c := range []struct {
				name string
				run  func(t *testing.T, k kind, ns string, kc caller)
			}{
				{"create, get and list", createGetList},
				{"describe and formats", formats},
				{"watch", kubectlWatch},
				{"apply", apply},
				{"server-side apply", serverSideApply},
				{"patch", patch},
				{"label and annotate", label},
				{"replace", replace},
				{"diff", diff},
				{"delete", remove},
				{"refusals", refusals},
				{"dry run", dryRun},
				{"table columns", columns},
				{"explain", explain},
			} {
				t.Run(c.name, func(t *testing.T) { c.run(t, k, w.namespace(t), w.admin(t)) })
			}
		})
	}
}

func holds(t *testing.T, kc caller, k kind, ns, name, want string) {
	t.Helper()
	if got := kc.run(t, "get", k.name, name, "-n", ns, "-o", k.jsonpath()); got != want {
		t.Errorf("%s holds %q, want %q", name, got, want)
	}
}

func createGetList(t *testing.T, k kind, ns string, kc caller) {
	for _, name := range []string{"one", "two", "three"} {
		kc.feed(t, k.manifest(name, "value-of-"+name), "create", "-n", ns, "-f", "-")
	}
	holds(t, kc, k, ns, "two", "value-of-two")
	got := sets.New(strings.Fields(kc.run(t, "get", k.name, "-n", ns, "-o", "jsonpath={.items[*].metadata.name}"))...)
	got.Delete("kube-root-ca.crt") // made by a controller
	if want := sets.New("one", "two", "three"); !got.Equal(want) {
		t.Errorf("list: %v, want %v", got, want)
	}
	everywhere := kc.run(t, "get", k.name, "-A")
	for _, name := range []string{"one", "two", "three"} {
		if !strings.Contains(everywhere, ns+" ") || !strings.Contains(everywhere, " "+name+" ") {
			t.Errorf("get -A shows no %s/%s:\n%s", ns, name, everywhere)
		}
	}
}

func formats(t *testing.T, k kind, ns string, kc caller) {
	kc.feed(t, k.manifest("shown", "this-value"), "create", "-n", ns, "-f", "-")
	for _, args := range [][]string{
		{"describe", k.name, "shown"},
		{"get", k.name, "shown", "-o", "yaml"},
		{"get", k.name, "shown", "-o", "json"},
		{"get", k.name, "-o", "custom-columns=V:." + strings.Join(k.path[:], ".")},
		{"get", k.name, "--field-selector", "metadata.name=shown", "-o", "yaml"},
	} {
		// describe capitalizes field names, and prints values as they are
		if out := kc.run(t, append(args, "-n", ns)...); !strings.Contains(out, "this-value") {
			t.Errorf("%v does not show the value:\n%s", args, out)
		}
	}
	if out := kc.run(t, "get", k.name, "shown", "-n", ns, "-o", "name"); !strings.HasSuffix(out, "/shown\n") {
		t.Errorf("-o name: %q", out)
	}
}

func kubectlWatch(t *testing.T, k kind, ns string, kc caller) {
	kc.feed(t, k.manifest("seen", "first"), "create", "-n", ns, "-f", "-")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := kc.command(ctx, "get", k.name, "-n", ns, "--field-selector", "metadata.name=seen", "--watch", "--output-watch-events", "-o", "json")
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	events := json.NewDecoder(bufio.NewReader(out))
	next := func(want, value string) {
		t.Helper()
		var e struct {
			Type   string
			Object map[string]any
		}
		if err := events.Decode(&e); err != nil {
			t.Fatalf("reading events: %v", err)
		}
		field, _ := e.Object[k.path[0]].(map[string]any)
		if e.Type != want || field[k.path[1]] != value {
			t.Fatalf("event %s %v, want %s %s", e.Type, field, want, value)
		}
	}
	next("ADDED", "first")
	kc.run(t, "patch", k.name, "seen", "-n", ns, "--type=merge", "-p", k.patch("second"))
	next("MODIFIED", "second")
	kc.run(t, "delete", k.name, "seen", "-n", ns)
	next("DELETED", "second")
	cancel()
	_ = cmd.Wait() // killed
}

func apply(t *testing.T, k kind, ns string, kc caller) {
	for _, step := range []struct{ value, want string }{{"a", "created"}, {"a", "unchanged"}, {"b", "configured"}} {
		if out := kc.feed(t, k.manifest("applied", step.value), "apply", "-n", ns, "-f", "-"); !strings.Contains(out, step.want) {
			t.Errorf("applying %q: %s, want %s", step.value, out, step.want)
		}
	}
	holds(t, kc, k, ns, "applied", "b")
}

func serverSideApply(t *testing.T, k kind, ns string, kc caller) {
	kc.feed(t, k.manifest("shared", "mine"), "apply", "-n", ns, "--server-side", "--field-manager=me", "-f", "-")
	kc.feed(t, k.manifest("shared", "mine"), "apply", "-n", ns, "--server-side", "--field-manager=you", "-f", "-")
	kc.fail(t, "conflict", k.manifest("shared", "yours"), "apply", "-n", ns, "--server-side", "--field-manager=you", "-f", "-")
	kc.feed(t, k.manifest("shared", "yours"), "apply", "-n", ns, "--server-side", "--field-manager=you", "--force-conflicts", "-f", "-")
	holds(t, kc, k, ns, "shared", "yours")
	managers := kc.run(t, "get", k.name, "shared", "-n", ns, "--show-managed-fields", "-o", "jsonpath={.metadata.managedFields[*].manager}")
	if got := sets.New(strings.Fields(managers)...); !got.Has("you") {
		t.Errorf("managers %v, want one of them to be you", got)
	}
}

func patch(t *testing.T, k kind, ns string, kc caller) {
	kc.feed(t, k.manifest("patched", "start"), "create", "-n", ns, "-f", "-")
	for _, p := range []struct{ kind, patch, want string }{
		{"merge", k.patch("merged"), "merged"},
		{"json", fmt.Sprintf(`[{"op":"replace","path":"/%s/%s","value":"replaced"}]`, k.path[0], k.path[1]), "replaced"},
		{"strategic", k.patch("strategic"), "strategic"},
	} {
		kc.run(t, "patch", k.name, "patched", "-n", ns, "--type="+p.kind, "-p", p.patch)
		holds(t, kc, k, ns, "patched", p.want)
	}
}

func label(t *testing.T, k kind, ns string, kc caller) {
	for _, name := range []string{"red", "blue"} {
		kc.feed(t, k.manifest(name, "x"), "create", "-n", ns, "-f", "-")
		kc.run(t, "label", k.name, name, "-n", ns, "colour="+name)
		kc.run(t, "annotate", k.name, name, "-n", ns, "note=a "+name+" one")
	}
	if got := kc.run(t, "get", k.name, "-n", ns, "-l", "colour=red", "-o", "name"); !strings.HasSuffix(got, "/red\n") || strings.Contains(got, "blue") {
		t.Errorf("selected by label: %q, want only red", got)
	}
	if got := kc.run(t, "get", k.name, "blue", "-n", ns, "-o", "jsonpath={.metadata.annotations.note}"); got != "a blue one" {
		t.Errorf("annotation %q, want a blue one", got)
	}
}

func replace(t *testing.T, k kind, ns string, kc caller) {
	kc.feed(t, k.manifest("replaced", "old"), "create", "-n", ns, "-f", "-")
	kc.feed(t, k.manifest("replaced", "new"), "replace", "-n", ns, "-f", "-")
	holds(t, kc, k, ns, "replaced", "new")
	stale := k.object("replaced", "stale")
	stale.SetResourceVersion("1")
	kc.fail(t, "Conflict", string(must.Get(stale.MarshalJSON())(t)), "replace", "-n", ns, "-f", "-")
}

func diff(t *testing.T, k kind, ns string, kc caller) {
	kc.feed(t, k.manifest("compared", "left"), "apply", "-n", ns, "-f", "-")
	if a := kc.try(t, k.manifest("compared", "left"), "diff", "-n", ns, "-f", "-"); a.Code != 0 {
		t.Errorf("diff without a change: exit code %d\n%s%s", a.Code, a.Out, a.Errs)
	}
	a := kc.try(t, k.manifest("compared", "right"), "diff", "-n", ns, "-f", "-")
	if a.Code != 1 || !strings.Contains(a.Out, "right") || !strings.Contains(a.Out, "left") {
		t.Errorf("diff with a change: exit code %d, want 1 and both values\n%s%s", a.Code, a.Out, a.Errs)
	}
}

func remove(t *testing.T, k kind, ns string, kc caller) {
	for _, name := range []string{"a", "b", "c"} {
		kc.feed(t, k.manifest(name, "x"), "create", "-n", ns, "-f", "-")
	}
	kc.run(t, "delete", k.name, "a", "-n", ns)
	kc.fail(t, "NotFound", "", "get", k.name, "a", "-n", ns)
	kc.run(t, "get", k.name, "b", "c", "-n", ns)
	kc.run(t, "delete", k.name, "--all", "-n", ns) // DELETE of a collection's members
	kc.fail(t, "NotFound", "", "get", k.name, "b", "-n", ns)
}

func refusals(t *testing.T, k kind, ns string, kc caller) {
	kc.fail(t, "NotFound", "", "get", k.name, "nobody", "-n", ns)
	kc.feed(t, k.manifest("once", "x"), "create", "-n", ns, "-f", "-")
	kc.fail(t, "AlreadyExists", k.manifest("once", "x"), "create", "-n", ns, "-f", "-")
	kc.fail(t, "Invalid", k.manifest(k.invalid[0], k.invalid[1]), "create", "-n", ns, "-f", "-")
	kc.fail(t, "unknown field", strings.Replace(k.manifest("odd", "x"), "{", `{"oddity":1,`, 1), "create", "-n", ns, "-f", "-")
	kc.fail(t, "not found", k.manifest("x", "x"), "create", "-n", ns+"-that-is-not", "-f", "-")
	kc.w.as(t, kc.w.server, kc.w.StaticToken("bob")).fail(t, "Forbidden", "", "get", k.name, "-n", ns)
}

func dryRun(t *testing.T, k kind, ns string, kc caller) {
	if out := kc.feed(t, k.manifest("ghost", "boo"), "create", "-n", ns, "--dry-run=server", "-o", "yaml", "-f", "-"); !strings.Contains(out, "boo") || !strings.Contains(out, "uid:") {
		t.Errorf("want the object that would be stored, got:\n%s", out)
	}
	kc.fail(t, "NotFound", "", "get", k.name, "ghost", "-n", ns)
}

func columns(t *testing.T, k kind, ns string, kc caller) {
	kc.feed(t, k.manifest("row", "x"), "create", "-n", ns, "-f", "-")
	out := kc.run(t, "get", k.name, "row", "-n", ns)
	head, _, _ := strings.Cut(out, "\n")
	var got []string
	for part := range strings.SplitSeq(head, "  ") {
		if part = strings.TrimSpace(part); part != "" {
			got = append(got, part)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(k.columns) {
		t.Errorf("columns %q, want %q:\n%s", got, k.columns, out)
	}
}

func explain(t *testing.T, k kind, _ string, kc caller) {
	out := kc.run(t, "explain", k.name, "--recursive")
	for _, want := range []string{"KIND:       " + k.kind, k.path[0], "ownerReferences"} {
		if !strings.Contains(out, want) {
			t.Errorf("explain shows no %q:\n%.2000s", want, out)
		}
	}
}
