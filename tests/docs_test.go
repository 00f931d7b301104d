package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// pages returns all documents of the repository, by path from its root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md", "../examples/*/*.md"} {
		for _, file := range must.Get(filepath.Glob(pattern))(t) {
			out[file[len("../"):]] = string(must.Get(os.ReadFile(file))(t))
		}
	}
	return out
}

// anchor returns the anchor of a title's links.
func anchor(title string) string {
	kept := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(title), "")
	return strings.ReplaceAll(strings.TrimSpace(kept), " ", "-")
}

// A link within the repository leads to an existing file and title.
func TestLinksLead(t *testing.T) {
	all := pages(t)
	link := regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]+))?\)`)
	title := regexp.MustCompile(`(?m)^#+ (.+)$`)
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to := page
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(filepath.Join("..", to)); err != nil {
				t.Errorf("%s: there is no %s", page, to)
				continue
			}
			titles := title.FindAllStringSubmatch(all[to], -1)
			if m[2] != "" && !slices.ContainsFunc(titles, func(x []string) bool { return anchor(x[1]) == m[2] }) {
				t.Errorf("%s: there is no title #%s in %s", page, m[2], to)
			}
		}
	}
}

// The index of documents has every page. The index of decisions has every decision with its title
// and state.
func TestIndexes(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		dir, name := filepath.Split(page)
		index, entry := all["docs/README.md"], "("+strings.TrimPrefix(page, "docs/")
		switch {
		case name == "README.md" || dir == "docs/runbooks/" || !strings.HasPrefix(dir, "docs/") || strings.HasPrefix(name, "0000"):
			continue
		case dir == "docs/decisions/":
			title, state, _ := strings.Cut(strings.TrimPrefix(text, "# "+name[:4]+": "), "\n\n")
			stands := "stands"
			if m := regexp.MustCompile(`^[^.]*\b((?:replaced|amended) by \d{4}(?:, \d{4})*)`).FindStringSubmatch(strings.ReplaceAll(state, "\n", " ")); m != nil {
				stands = m[1]
			}
			index, entry = all["docs/decisions/README.md"], "("+name+") | "+title+" | "+stands+" |"
		}
		if !strings.Contains(index, entry) {
			t.Errorf("the index does not have %s", entry)
		}
	}
}

// docs/annotations.md has exactly the existing annotations.
func TestAnnotationsAreDocumented(t *testing.T) {
	source := must.Get(os.ReadFile("../registry/policy.go"))(t)
	find := func(expression, text string) (names []string) {
		for _, m := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		return slices.Sorted(slices.Values(names))
	}
	have := find("(?m)^\tcase \"([a-z0-9-]+)\":", string(source))
	have = slices.DeleteFunc(have, func(name string) bool { return name == "true" || name == "false" }) // values of setBool
	if listed := find("(?m)^\\| `([a-z0-9-]+)` \\|", pages(t)["docs/annotations.md"]); len(have) < 12 || !slices.Equal(have, listed) {
		t.Errorf("registry/policy.go has %v\ndocs/annotations.md %v", have, listed)
	}
}

// Pages name only existing Go files and tests. The CHANGELOG and replaced decisions may name
// deleted ones.
func TestPagesNameWhatExists(t *testing.T) {
	_, all := sources(t)
	_, tests := functions(t)
	file, test := regexp.MustCompile("`([a-z0-9_/]+/[a-z0-9_]+\\.go)`"), regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	for page, text := range pages(t) {
		if page == "CHANGELOG.md" || strings.Contains(text[:min(len(text), 300)], "replaced by 00") {
			continue
		}
		for _, m := range file.FindAllStringSubmatch(text, -1) {
			if !slices.ContainsFunc(all, func(s source) bool { return s.name == m[1] || strings.HasSuffix(s.name, "/"+m[1]) }) {
				t.Errorf("%s: there is no file %s", page, m[1])
			}
		}
		for _, name := range test.FindAllString(text, -1) {
			if !tests[name] {
				t.Errorf("%s: there is no test %s", page, name)
			}
		}
	}
}
