package negotiate

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func TestMatches(t *testing.T) {
	const tag = `"A1"`
	for _, tt := range []struct {
		name  string
		lines []string
		want  bool
	}{
		{"none", nil, false},
		{"empty", []string{""}, false},
		{"the tag", []string{`"A1"`}, true},
		{"another", []string{`"B2"`}, false},
		{"any", []string{"*"}, true},
		{"weak", []string{`W/"A1"`}, true},
		{"weak another", []string{`W/"B2"`}, false},
		{"weak any", []string{"W/*"}, false},
		{"any within a tag", []string{`"B,*,2"`}, false},
		{"in a list", []string{`"B2", W/"C3" ,"A1"`}, true},
		{"with a comma in a tag", []string{`"B,2","A1"`}, true},
		{"in a second line", []string{`"B2"`, `"A1"`}, true},
		{"unquoted", []string{"A1"}, false},
		{"unquoted before it", []string{`B2, "A1"`}, true},
		{"without an end", []string{`"A1`}, false},
		{"lower case", []string{`"a1"`}, false},
		{"w is not W", []string{`w/"A1"`}, false},
		{"stray commas", []string{`,, "A1",`}, true},
	} {
		check.Same(t, tt.want, Matches(tag, tt.lines...), "%s: matches", tt.name)
	}
}

func TestTakesGzip(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lines []string
		want  bool
	}{
		{"none", nil, false},
		{"gzip", []string{"gzip"}, true},
		{"in a list", []string{"br, GZip;q=0.5"}, true},
		{"in a second line", []string{"br", "gzip"}, true},
		{"refused", []string{"gzip;q=0"}, false},
		{"refused with decimals", []string{"gzip; q=0.000", "*"}, false},
		{"hardly wanted", []string{"gzip; Q=0.001"}, true},
		{"anything", []string{"*"}, false},
		{"anything but", []string{"*, gzip;q=0"}, false},
		{"nothing but", []string{"*;q=0, gzip"}, true},
		{"identity", []string{"identity"}, false},
		{"x-gzip", []string{"x-gzip"}, false},
		{"not a weight", []string{"gzip;level=0"}, true},
		{"nonsense", []string{";;,,q=0"}, false},
	} {
		check.Same(t, tt.want, TakesGzip(tt.lines...), "%s: takes gzip", tt.name)
	}
}

// An answer has its content's length, and to HEAD no content; one without content has no length.
func TestLength(t *testing.T) {
	for want, body := range map[string][]byte{"": nil, "0": {}, "3": []byte("abc")} {
		for method, content := range map[string]string{http.MethodGet: string(body), http.MethodHead: ""} {
			w := httptest.NewRecorder()
			Prepare(http.StatusOK, body).Write(w, httptest.NewRequest(method, "/", nil))
			check.Same(t, want, w.Header().Get("Content-Length"), "length of %q", body)
			check.Same(t, content, w.Body.String(), "content of %s", method)
		}
	}
}

// A tag that does not occur in the field does not match, and a field that equals the tag does.
func FuzzMatches(f *testing.F) {
	for _, s := range []string{`"A1"`, "*", `W/"x","y"`, `"`, `W/`, ` ,"a" "b"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		TakesGzip(s)
		check.Same(t, false, Matches(`"0123456789"`, s) && !strings.Contains(s, "*") && !strings.Contains(s, `"0123456789"`), "%q matches", s)
		check.Same(t, true, Matches(`"A1"`, s, `"A1"`), "%q hides the tag that follows it", s)
	})
}
