package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const source = `package p

const most = 8

type seat struct{ taken bool }

func sit(seats []*seat, n int) (*seat, error) {
	if n <= most && full(seats) {
		seats[n].taken = true
	}
	defer close(make(chan int, most))
	return &seat{taken: full(seats)}, err()
}

func full(seats []*seat) bool { return len(seats) > 0 || most == 8 }

func err() error { return nil }
`

// All mutants of a small file compile, alone and together.
func TestMutants(t *testing.T) {
	root := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	name := filepath.Join(root, "d", "p.go")
	must.Do(t, os.Mkdir(filepath.Dir(name), 0o700))
	must.Do(t, os.WriteFile(name, []byte(source), 0o600))
	must.Do(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module m\n"), 0o600))
	f := must.Get(load(t.Context(), root, "./d"))(t)[0]
	var got []string
	for _, m := range f.mutants {
		got = append(got, m.key())
		check.Same(t, true, f.compiles(m), "%s does not compile", m.key())
	}
	want := []string{
		"d/p.go sit: n <= most && full(seats) → n <= most || full(seats)",
		"d/p.go sit: n <= most && full(seats) → n <= most",
		"d/p.go sit: n <= most → n < most",
		"d/p.go sit: most → most + 1",
		"d/p.go sit: most → most - 1",
		"d/p.go sit: seats[n].taken = true → dropped",
		"d/p.go sit: true → !true",
		"d/p.go sit: defer close(make(chan int, most)) → dropped",
		"d/p.go sit: err() → nil",
		"d/p.go sit: taken: full(seats) → dropped",
		"d/p.go full: len(seats) > 0 || most == 8 → false",
		"d/p.go full: len(seats) > 0 || most == 8 → len(seats) > 0 && most == 8",
		"d/p.go full: len(seats) > 0 || most == 8 → len(seats) > 0",
		"d/p.go full: len(seats) > 0 → len(seats) >= 0",
		"d/p.go full: 0 → 0 + 1",
		"d/p.go full: most == 8 → !(most == 8)",
	}
	check.Same(t, want, got, "mutants")
	files := f.write(f.mutants)
	const text = "if (!mutant(1) && ((!mutant(2) && ((!mutant(3) && (n <= mutantPick(4, int(mutantPick(5, int(most), int(most - 1))), int(most + 1))) || mutant(3) && (n < most)) && full(seats)) || mutant(2) && (n <= most))) || mutant(1) && (n <= most || full(seats))) {"
	check.Has(t, string(files[name]), text)
}

// One of several folders that is misspelt would be left out of a run that passes.
func TestFolders(t *testing.T) {
	var w workshop
	check.Fault(t, "proxi: no package that decides", w.work(t.Context(), []string{"proxy", "proxi"}), "work")
}

// A line of the list applies to exactly one mutant, and is reported when no such mutant exists.
func TestList(t *testing.T) {
	here := &mutant{file: "a.go F", code: "x: y", to: "dropped"}
	w := workshop{reasons: []string{"# what this is", "a.go F: x: y → dropped: nobody asks", "a.go F: z → dropped: gone", ""}}
	check.Same(t, "nobody asks", w.reason(here), "reason")
	check.Same(t, "", w.reason(&mutant{file: "a.go F", code: "z", to: "dropped (2)"}), "reason of another")
	err := w.stale([]*folder{{mutants: []*mutant{here}}})
	if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "z → dropped") {
		t.Errorf("stale: %v", err)
	}
}
