package pages

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Hostile values do not change a page's elements and attributes, and appear as text.
func TestValuesStayText(t *testing.T) {
	const hostile = `"'><script>alert(1)</script> %s %!d <!-- &lt; ` + "`javascript:"
	for _, page := range []string{"overview.html", "apiservice.html", "busiest.html"} {
		for _, yes := range []bool{true, false} {
			plain, _ := tags(t, viewOf("text", yes), page)
			got, text := tags(t, viewOf(hostile, yes), page)
			check.Same(t, plain, got, "%s: elements depend on values", page)
			check.Has(t, text, hostile)
		}
	}
}

// An address with a scheme that runs code is no link, and a name stays one segment of a path.
func TestLinks(t *testing.T) {
	v := viewOf("text", true)
	v.APIServices[0].Name, v.APIServices[0].Runbook = "v1.a/../b?c#d", "javascript:alert(1)"
	text := rendered(v, "overview.html").String()
	check.Has(t, text, `href="apiservice/v1.a%2F..%2Fb%3Fc%23d"`)
	check.Same(t, false, strings.Contains(text, "javascript:"), "a link runs code: %s", text)
}

// viewOf is a view with every part filled in; its strings are s.
func viewOf(s string, yes bool) *view {
	v := &view{Status: new(answer.Status), Explanation: new(answer.Explanation)}
	fill(reflect.ValueOf(v).Elem(), s, yes)
	v.One = &v.APIServices[0]
	return v
}

func fill(v reflect.Value, s string, yes bool) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		v.SetBool(yes)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(.7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), s, yes)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), s, yes)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1_000_000_000, 0)))
			return
		}
		for _, field := range v.Fields() {
			fill(field, s, yes)
		}
	}
}

// rendered returns a page's text.
func rendered(v *view, page string) *bytes.Buffer {
	w := httptest.NewRecorder()
	(&Pages{templates: parse()}).render(w, page, v)
	return w.Body
}

// tags renders a page and returns its tags with the names of their attributes, and its text.
func tags(t *testing.T, v *view, page string) (names, text string) {
	t.Helper()
	var n, s strings.Builder
	for z := html.NewTokenizer(rendered(v, page)); z.Next() != html.ErrorToken; {
		token := z.Token()
		if token.Type == html.TextToken {
			s.WriteString(token.Data)
			continue
		}
		n.WriteString(token.Type.String() + " " + token.Data)
		for _, a := range token.Attr {
			n.WriteString(" " + a.Key)
		}
		n.WriteString("\n")
	}
	return n.String(), s.String()
}

// Only the templates are markup: a conversion to one of template's types would not escape a value.
func TestMarkupIsConstant(t *testing.T) {
	allowed := []string{"New", "Must", "FuncMap", "Template"}
	for _, name := range must.Get(filepath.Glob("*.go"))(t) {
		f := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if of, ok := s.X.(*ast.Ident); ok && of.Name == "template" && !slices.Contains(allowed, s.Sel.Name) {
					t.Errorf("%s uses template.%s", name, s.Sel.Name)
				}
			}
			return true
		})
	}
}

// many is a view of n APIServices: of every hundred, one is down, and the next has half of its
// endpoints.
func many(n int, target string) *view {
	v := &view{Status: &answer.Status{Complete: true, Time: time.Now()}, List: listingOf(httptest.NewRequest("GET", target, nil))}
	for i := range n {
		a := answer.APIService{Name: fmt.Sprintf("v1.g%04d.example.com", i), Kind: "remote", Service: "ns/s:443", Verdict: registry.Verdict{Status: "True", Reason: "Passed"}}
		switch i % 100 {
		case 99:
			a.Verdict, a.Cause, a.Owner = registry.Verdict{Status: "False", Reason: "MissingEndpoints"}, "no pods", "team-x"
		case 0:
			a.Cause = "1 of 2 endpoints are unhealthy"
		case 1:
			a.Verdict.Status = "Unknown"
		}
		v.APIServices = append(v.APIServices, a)
	}
	return v
}

// A thousand APIServices are shown in pages, without a script, unhealthy ones first.
func TestList(t *testing.T) {
	for _, tc := range []struct {
		target      string
		rows, found int
		first, last string
		links       []string
	}{
		{"/", 100, 1000, "v1.g0099", "v1.g0071", []string{`href="?page=2"`}}, // 10 down, 10 unknown, 10 half, 70 others
		{"/?page=2", 100, 1000, "v1.g0072", "v1.g0174", []string{`href="?page=1"`, `href="?page=3"`}},
		{"/?page=99", 100, 1000, "v1.g0896", "v1.g0998", []string{`href="?page=9"`}},
		{"/?page=-3&q=TEAM-x", 10, 10, "v1.g0099", "v1.g0999", nil},
		{"/?q=g000", 10, 10, "v1.g0001", "v1.g0009", nil},
		{"/?q=example&page=2", 100, 1000, "v1.g0072", "v1.g0174", []string{`href="?page=1&amp;q=example"`, `href="?page=3&amp;q=example"`}},
		{"/?q=nobody", 0, 0, "", "", nil},
	} {
		v := many(1000, tc.target)
		rows := v.Rows()
		check.Same(t, [2]int{tc.rows, tc.found}, [2]int{len(rows), v.List.Found}, "%s: rows, and how many there are", tc.target)
		if len(rows) > 0 && (!strings.HasPrefix(rows[0].Name, tc.first) || !strings.HasPrefix(rows[len(rows)-1].Name, tc.last)) {
			t.Errorf("%s: from %s to %s", tc.target, rows[0].Name, rows[len(rows)-1].Name)
		}
		text := rendered(v, "overview.html").String()
		check.Has(t, text, tc.links...)
		if n := strings.Count(text, "<tr>") - 1; n != tc.rows && tc.rows > 0 || len(text) > 200_000 {
			t.Errorf("%s: %d rows are shown, in %d bytes", tc.target, n, len(text))
		}
	}
}

// The changes of an endpoint are kept while it exists, up to the number that is shown.
func TestEndpointHistory(t *testing.T) {
	h := history{endpoints: make(map[string]map[string][]answer.Change)}
	entry := func(health ...registry.Health) *registry.Entry {
		e := &registry.Entry{Name: "v1.x"}
		for i, v := range health {
			e.Endpoints = append(e.Endpoints, registry.Endpoint{Address: fmt.Sprint(i), Health: v})
		}
		return e
	}
	was, now := &registry.Entry{}, time.Unix(0, 0)
	for i := range 3 * maxChanges {
		is := entry(registry.Healthy, registry.Healthy)
		if i%2 == 1 {
			is = entry(registry.Healthy, registry.Unhealthy)
		}
		h.changed(was, is, now.Add(time.Duration(i)*time.Second))
		was = is
	}
	got := h.of("v1.x")
	check.Same(t, []answer.Change{{Time: now, Health: "healthy"}}, got["0"], "of an endpoint that changed once")
	n := len(got["1"])
	check.Same(t, true, n == maxChanges && got["1"][n-1].Health == "unhealthy", "%d changes: %v", n, got["1"])
	gone := entry(registry.Healthy)
	h.changed(was, gone, now)
	check.Same(t, 1, len(h.of("v1.x")), "endpoints in the history after one was removed")
	if h.changed(gone, &registry.Entry{}, now); len(h.endpoints) != 0 {
		t.Error("the history keeps a removed APIService")
	}
}
