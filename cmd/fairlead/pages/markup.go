package pages

import (
	"bytes"
	"fmt"
	"html"
)

// html/template would do all this by itself, but it calls methods by their names: the linker would have to keep every exported method of the whole program, 9 MB of it.

// markup is HTML that is written here: constants, and nothing that was converted. What others wrote is a value.
type markup string

// document is HTML in the making.
type document struct{ bytes.Buffer }

// put adds markup, with values in the place of its verbs, all %s: between tags, or in an attribute that is quoted. There they are text, whatever they hold.
func (d *document) put(m markup, values ...any) {
	for i, v := range values {
		values[i] = html.EscapeString(fmt.Sprint(v))
	}
	_, _ = fmt.Fprintf(&d.Buffer, string(m), values...) // a buffer takes everything
}

// some puts markup around a value, if there is one.
func (d *document) some(m markup, value string) {
	if value != "" {
		d.put(m, value)
	}
}

// items puts a list, if there is anything in it.
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

// when is s or nothing.
func when(really bool, s string) string {
	if really {
		return s
	}
	return ""
}
