package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// palette colours words. The zero palette does not.
type palette struct{ on bool }

// paletteFor is for a terminal, unless its user has asked for none (https://no-color.org) or it can
// do none.
func paletteFor(w io.Writer) palette {
	f, ok := w.(*os.File)
	_, no := os.LookupEnv("NO_COLOR")
	return palette{on: ok && !no && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))}
}

func (p palette) paint(code, text string) string {
	if !p.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p palette) good(text string) string { return p.paint("32", text) }
func (p palette) bad(text string) string  { return p.paint("31", text) }
func (p palette) dim(text string) string  { return p.paint("2", text) }

// printable puts spaces for what a terminal would obey, or would show in another order, in what a
// backend, a certificate or an object's author may have written.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
}

// cell is a word of a table and how it is painted.
type cell struct {
	text  string
	paint func(string) string
}

// table writes rows in columns, as kubectl does. Colours do not count in the widths.
func table(w io.Writer, rows [][]cell) error {
	var widths []int
	for _, row := range rows {
		for i := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			row[i].text = printable(row[i].text)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	const gap = 3 // kubectl's
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			text := c.text
			if c.paint != nil {
				text = c.paint(text)
			}
			line.WriteString(text)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+gap))
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// encode writes a document as -o asks; it reports false for the forms that are for people.
func encode(w io.Writer, form string, v any) (done bool, err error) {
	switch form {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return true, e.Encode(v)
	case "yaml":
		data, err := yaml.Marshal(v)
		if err != nil {
			return true, err
		}
		_, err = w.Write(data)
		return true, err
	}
	return false, nil
}
