package main

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Only a terminal gets colours, which do not count as width.
func TestColour(t *testing.T) {
	f := must.Get(os.CreateTemp(t.TempDir(), ""))(t)
	defer f.Close()
	if paletteFor(&bytes.Buffer{}).on || paletteFor(f).on {
		t.Error("a pipe or a file gets colours")
	}
	var out bytes.Buffer
	now, c := time.Now(), &client{palette: palette{on: true}}
	rows := [][]cell{{{"a", c.palette.good}, {text: "b"}}, {{text: "long"}, {text: "c"}}}
	for _, left := range []time.Duration{5 * time.Hour, 100 * time.Hour, 1000 * time.Hour} { // as on the page
		rows = append(rows, []cell{c.expires(now, now.Add(left-time.Second)), {text: "d"}})
	}
	must.Do(t, table(&out, rows))
	check.Same(t, "\x1b[32ma\x1b[0m      b\nlong   c\n\x1b[31m4h\x1b[0m     d\n\x1b[33m4d\x1b[0m     d\n41d    d\n", out.String(), "table")
}
