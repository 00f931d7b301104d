// Package printable escapes what would control a terminal or reorder its text: control characters
// (C0, C1, DEL, so every escape sequence), bidirectional controls, invalid UTF-8.
//
// Text of others (an extension server, a certificate, an object's author) goes through it before it
// is printed or logged. Its functions keep no state.
package printable

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns text as one line: white space is a space, other unprintable characters become \u001b
// and the like, which JSON reads as the same character.
func Line(text string) string { return escape(text, "", " ") }

// Lines is Line for a text of several lines: it keeps line ends and tabs.
func Lines(text string) string { return escape(text, "\n\t", " ") }

// Cut shortens a text above most bytes, at a whole character.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// Cause removes from an error's text what differs each time: the local address of "read tcp
// 10.0.0.1:34567->10.0.0.2:443", and the time T of "current time T is after T2" in crypto/x509's error for an expired
// certificate: what keeps failing in the same way is no news, and makes no new tables. It also bounds others' text.
func Cause(text string) string {
	const most = 1024 // bytes: the longest of Go's TLS errors with a few names fits
	text = Cut(text, most)
	if before, rest, ok := strings.Cut(text, "current time "); ok {
		if _, after, ok := strings.Cut(rest, " is "); ok {
			text = before + "current time is " + after
		}
	}
	words := strings.Split(text, " ")
	for i, w := range words {
		if _, remote, ok := strings.Cut(w, "->"); ok {
			words[i] = remote
		}
	}
	return strings.Join(words, " ")
}

// JSON makes a writer for text in JSON: escaped, it still means the same. Each write must end with a whole character.
func JSON(w io.Writer) io.Writer { return writer{w} }

type writer struct{ io.Writer }

func (w writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, escape(string(p), "\n\t", "")); err != nil {
		return 0, err //nolint:wrapcheck // this is the writer
	}
	return len(p), nil
}

// escape keeps the characters in kept. Other white space becomes space, unless that is empty.
func escape(text, kept, space string) string {
	clean := func(r rune) bool { return unicode.IsGraphic(r) && r != utf8.RuneError || strings.ContainsRune(kept, r) }
	if strings.IndexFunc(text, func(r rune) bool { return !clean(r) }) < 0 {
		return text
	}
	b := make([]byte, 0, len(text)+64) // 64: ten escapes
	for _, r := range text {
		switch {
		case clean(r):
			b = utf8.AppendRune(b, r)
		case unicode.IsSpace(r) && space != "":
			b = append(b, space...)
		default:
			b = Append(b, r)
		}
	}
	return string(b)
}

// Append appends a character's escape, as JSON spells it.
func Append(b []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
		return Append(Append(b, high), low)
	}
	return append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}
