package main

import (
	"net/http"
	"strings"
	"testing"
)

// The rows of replicas are added up by caller, with the credential of the user. Who does not answer is named.
func TestTopOfReplicas(t *testing.T) {
	f, other, gone := newFront(t), newFront(t), newFront(t)
	const rows = `"rows":[{"user":"jane","requests":5,"out":1048576},{"user":"bob","requests":8}]}`
	f.answers["/fairlead/busiest"] = []reply{{http.StatusOK, `{"from":"2026-11-21T11:59:00Z","to":"2026-11-21T12:00:00Z","total":{"requests":20,"out":1048576},` + rows}}
	other.answers["/fairlead/busiest"] = []reply{{http.StatusOK, `{"from":"2026-11-21T11:59:10Z","to":"2026-11-21T12:00:01Z","total":{"requests":20,"out":1048576},` + strings.ReplaceAll(rows, "8", "1")}}
	gone.Close()
	t.Setenv("KUBECONFIG", kubeconfig(t, f.Server))
	f.lists(t, f.address(), other.address(), gone.address())
	out := run(t, "", "top", "--replicas", "--by=user", "--sort=requests", "--limit=1", "--as=carol")
	for _, want := range []string{
		"61 s until 12:00:01 UTC: 40 requests (0.7/s), 0.0Mi in, 2.0Mi out, 0 watches open\n", "\njane     10         2.0Mi   ", "\nothers   30         0.0Mi   ", "exit 1: replica " + gone.address() + ": asking /fairlead/busiest: ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if asked := other.asked; len(asked) != 1 || asked[0] != "/fairlead/busiest?by=user&limit=100&sort=requests&window=minute carol" {
		t.Errorf("another replica was asked for %q", asked)
	}
	f.lists(t, gone.address())
	if out := run(t, "", "top", "--replicas"); !strings.HasPrefix(out, "exit 1: replica ") {
		t.Errorf("without an answer: %s", out)
	}
}
