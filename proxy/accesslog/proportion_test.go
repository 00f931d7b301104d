package accesslog

import (
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// Whatever is in a line, writing it costs in proportion to its size.
func TestInProportion(t *testing.T) {
	var rows []proportion.Row
	for name, unit := range map[string]string{
		"plain": "a", "quotes": `"`, "backslashes": `\`, "control characters": "\x00", "broken UTF-8": "\xff", "half letters": "\xe2\x80", "letters beyond ASCII": "ä", "one odd letter": "",
	} {
		rows = append(rows, proportion.Row{Name: name, N: maxText / 16, Of: func(n int) (int, func() any) {
			text := strings.Repeat(unit+"a", n) + "\n"
			l := full()
			l.Path, l.User = text, text
			return 2 * len(text), func() any { return l.append(nil) }
		}})
	}
	proportion.Check(t, rows...)
}
