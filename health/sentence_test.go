package health

import (
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// A server's own words are a part of the cause, bounded and in one printable line.
func TestSentence(t *testing.T) {
	for body, want := range map[string]string{
		`{"kind":"Status","message":"forbidden: \u001b[31mno\nrole"}`:             `: forbidden: \u001b[31mno role`,
		`{"kind":"Status","message":"` + strings.Repeat("a", 2*maxMessage) + `"}`: ": " + strings.Repeat("a", maxMessage) + "…",
		`{"kind":"Status"}`: "", `{"message":"x"}`: "", "forbidden": "", "": "",
		`{"kind":"Status","message":"` + strings.Repeat("a", maxHead) + `"}`: "",
	} {
		check.Same(t, want, sentence(strings.NewReader(body)), "%.50s", body)
	}
}
