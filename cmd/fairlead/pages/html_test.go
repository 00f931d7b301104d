package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Hostile values do not change a page's elements and attributes, and appear as text.
func TestValuesStayText(t *testing.T) {
	const hostile = `"'><script>alert(1)</script> %s %!d <!-- &lt; ` + "`javascript:"
	for name, page := range map[string]func(*document, *view){"overview": (*document).overview, "detail": (*document).detail} {
		for _, yes := range []bool{true, false} {
			plain, _ := tags(t, viewOf("text", yes), page)
			got, text := tags(t, viewOf(hostile, yes), page)
			check.Same(t, plain, got, "%s: elements depend on values", name)
			if plain == "" || !strings.Contains(text, hostile) || strings.Contains(text, "%!s(") || strings.Contains(text, "%!(EXTRA") {
				t.Errorf("%s says %s", name, text)
			}
		}
	}
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

// tags renders a page and returns its tags with the names of their attributes, and its text.
func tags(t *testing.T, v *view, page func(*document, *view)) (names, text string) {
	t.Helper()
	var d document
	page(&d, v)
	var n, s strings.Builder
	for z := html.NewTokenizer(&d); z.Next() != html.ErrorToken; {
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

// Only constants become markup: a conversion would not escape a value.
func TestMarkupIsConstant(t *testing.T) {
	files := must.Get(filepath.Glob("*.go"))(t)
	for _, name := range files {
		f := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if to, ok := call.Fun.(*ast.Ident); ok && to.Name == "markup" {
					t.Errorf("%s makes markup of a value", name)
				}
			}
			return true
		})
	}
}
