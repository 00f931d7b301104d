package pages

import (
	"bytes"
	"fmt"
	"html"

	"github.com/fairlead-proxy/fairlead/registry/printable"
)

// html/template would do all this by itself, but it calls methods by name: the linker would have to
// keep every exported method of the program, 9 MB.

// markup is HTML in constants of this package, never converted from other strings. All other text
// is a value.
type markup string

// document is an HTML document that is being written.
type document struct{ bytes.Buffer }

// put adds markup. Its verbs, all %s, are replaced by escaped values; they must stand between tags
// or in a quoted attribute.
func (d *document) put(m markup, values ...any) {
	for i, v := range values {
		values[i] = html.EscapeString(printable.Lines(fmt.Sprint(v)))
	}
	_, _ = fmt.Fprintf(&d.Buffer, string(m), values...) // writing to a buffer cannot fail
}

// some puts markup with a value, unless the value is empty.
func (d *document) some(m markup, value string) {
	if value != "" {
		d.put(m, value)
	}
}

// items puts a list, unless it is empty.
func (d *document) items(class string, items []string) {
	if len(items) == 0 {
		return
	}
	d.put(`<ul class="%s">`, class)
	for _, item := range items {
		d.put(`<li>%s</li>`, item)
	}
	d.put(`</ul>`)
}

// when returns s if really is set, and "" otherwise.
func when(really bool, s string) string {
	if really {
		return s
	}
	return ""
}
