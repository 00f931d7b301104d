// Package story runs txtar tests: scripts with one step a line, and the files that they use.
package story

import (
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Story is one txtar test.
type Story struct {
	name    string
	archive *txtar.Archive
}

var update = flag.Bool("update", false, "rewrite what the stories of testdata expect") //nolint:gochecknoglobals // as any flag of a test

// Tell runs each story of testdata as a subtest. With the flag -update it rewrites the expected files.
func Tell(t *testing.T, tell func(t *testing.T, s *Story)) {
	files := must.Get(filepath.Glob("testdata/*.txtar"))(t)
	must.Be(t, len(files) != 0, "no stories")
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) {
			s := &Story{f, must.Get(txtar.ParseFile(f))(t)}
			tell(t, s)
			if *update {
				must.Do(t, os.WriteFile(f, txtar.Format(s.archive), 0o644))
			}
		})
	}
}

// Updating reports whether the flag -update is set.
func Updating() bool { return *update }

// Steps yields the position and the words of each step.
func (s *Story) Steps() iter.Seq2[string, []string] {
	return func(yield func(string, []string) bool) {
		for i, line := range strings.Split(string(s.archive.Comment), "\n") {
			words := strings.Fields(line)
			if len(words) == 0 || strings.HasPrefix(words[0], "#") {
				continue
			}
			if !yield(fmt.Sprintf("%s:%d", s.name, i+1), words) {
				return
			}
		}
	}
}

// Set calls what set has for each word: name or name=value, or what it has for "" with the whole word.
func Set(t testing.TB, at string, words []string, set map[string]func(value string)) {
	t.Helper()
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if set[name] == nil {
			name, value = "", w
		}
		must.Be(t, set[name] != nil, "%s: unknown %s", at, w)
		set[name](value)
	}
}

// File returns the content of a file of the archive.
func (s *Story) File(t testing.TB, name string) string {
	t.Helper()
	for _, f := range s.archive.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	t.Fatalf("%s: no file %s", s.name, name)
	return ""
}

// Expect compares got with a file, or updates the file.
func (s *Story) Expect(t testing.TB, at, name, got string) {
	t.Helper()
	if *update {
		for i := range s.archive.Files {
			if s.archive.Files[i].Name == name {
				s.archive.Files[i].Data = []byte(got)
				return
			}
		}
		s.archive.Files = append(s.archive.Files, txtar.File{Name: name, Data: []byte(got)})
		return
	}
	if d := cmp.Diff(s.File(t, name), got); d != "" {
		t.Errorf("%s: differs from %s (-want +got):\n%s", at, name, d)
	}
}
