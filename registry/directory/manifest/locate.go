package manifest

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"
)

type document struct {
	file string // its name in faults
	text []byte
	line int        // the line of the file at which text begins, from 1
	root *yaml.Node // the parsed document. Nil until lineOf needs it
}

// split splits a file at its document markers, at the beginning of a line, where no text has them.
func split(data []byte) (docs []*document) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	begin, at, line, first := 0, 0, 1, 1
	add := func() {
		text := data[begin:at]
		if blank := text[:len(text)-len(bytes.TrimLeft(text, " \t\r\n"))]; len(blank) < len(text) {
			text = text[bytes.LastIndexByte(blank, '\n')+1:] // indentation of the first line is kept: it counts in YAML
			docs = append(docs, &document{text: text, line: first + bytes.Count(blank, []byte("\n"))})
		}
	}
	for whole := range bytes.Lines(data) {
		if m := string(whole[:min(3, len(whole))]); (m == "---" || m == "...") &&
			(len(whole) == 3 || strings.IndexByte(" \t\r\n", whole[3]) >= 0) {
			add()
			// The rest of the marker's line, usually a comment, belongs to the next document. The marker is cut out.
			begin, first = at+len(whole)-len(bytes.TrimLeft(whole[3:], "\t")), line
		}
		at += len(whole)
		line++
	}
	add()
	return docs
}

func (d *document) fault(path, message string) Fault {
	if path != "" {
		message = path + ": " + message
	}
	return Fault{File: d.file, Line: d.lineOf(path), Field: path, Message: message}
}

// find returns the match of an expression's group, or "". It compiles each time: faults are rare.
func find(expression, text string) string {
	if m := regexp.MustCompile(expression).FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// syntaxFault makes a fault from an error of the YAML parser, which counts lines of the document.
func (d *document) syntaxFault(err error) Fault {
	message := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", " ")
	message = strings.TrimSpace(strings.TrimPrefix(message, "unmarshal errors: "))
	line := d.line
	if n, err := strconv.Atoi(find(`line (\d+)`, message)); err == nil {
		line += max(n-1, 0)
		message = regexp.MustCompile(`line \d+: ?`).ReplaceAllString(message, "")
	}
	return Fault{File: d.file, Line: line, Message: "reading YAML: " + message}
}

func (d *document) decodeFaults(err error, at string) []Fault {
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		switch {
		case runtime.IsMissingKind(err):
			return []Fault{d.fault(at+"kind", "Required value")}
		case runtime.IsMissingVersion(err):
			return []Fault{d.fault(at+"apiVersion", "Required value")}
		case runtime.IsNotRegisteredError(err):
			what, _, _ := strings.Cut(cause(err).Error(), " in scheme")
			return []Fault{d.fault(at+"kind", "unknown kind or version: "+what)}
		}
		text := cause(err).Error()
		if strings.HasPrefix(text, "couldn't get version/kind") {
			text = "not a Kubernetes object"
		}
		if path := find(`Go struct field [^.]+\.(\S+) of type`, text); path != "" {
			is, want := find(`unmarshal (\S+)`, text), find(`of type (\S+)`, text)
			return []Fault{d.fault(at+path, fmt.Sprintf("cannot read a %s as %s", is, want))}
		}
		return []Fault{d.fault(strings.TrimSuffix(at, "."), text)}
	}
	var faults []Fault
	for _, e := range strict.Errors() {
		path := find(`"([^"]+)"`, e.Error()) // unknown field "spec.foo"
		faults = append(faults, d.fault(at+path, strings.TrimSpace(strings.ReplaceAll(e.Error(), `"`+path+`"`, ""))))
	}
	return faults
}

func (d *document) parse() {
	if d.root == nil {
		d.root = &yaml.Node{}
		_ = yaml.Unmarshal(d.text, d.root) // what sigs.k8s.io/yaml can read lacks only its lines
	}
}

// swells reports whether the document is larger than a file may be once its aliases are read: YAML's parsers bound how
// many values these make, not their bytes.
func (d *document) swells() bool {
	if bytes.IndexByte(d.text, '*') < 0 || bytes.IndexByte(d.text, '&') < 0 {
		return false
	}
	d.parse()
	return spread(d.root, maxFile, 1000) < 0 // deeper ones are no objects
}

// spread returns what is left of room without n, whose aliases may contain it.
func spread(n *yaml.Node, room, depth int) int {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	room -= len(n.Value)
	for _, c := range n.Content {
		if room < 0 || depth == 0 {
			return -1
		}
		room = spread(c, room-1, depth-1)
	}
	return room
}

// lineOf returns the file's line of a field, or of the nearest around it. It parses again, only for faults and Lists.
func (d *document) lineOf(path string) int {
	if path == "" {
		return d.line
	}
	d.parse()
	if len(d.root.Content) == 0 {
		return d.line
	}
	node, line := d.root.Content[0], d.root.Content[0].Line
	for _, step := range steps(path) {
		next, at := child(node, step)
		if next == nil {
			break
		}
		node, line = next, at
	}
	return d.line + line - 1
}

func child(n *yaml.Node, step string) (*yaml.Node, int) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == step {
				return n.Content[i+1], n.Content[i].Line
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line
		}
	}
	return nil, 0
}

// steps splits a path such as spec.ports[0].name or metadata.annotations[a.b/c].
func steps(path string) []string {
	var out []string
	for i, part := range strings.Split(path, "[") {
		if i > 0 {
			var inner string
			inner, part, _ = strings.Cut(part, "]")
			out = append(out, inner)
		}
		out = append(out, strings.FieldsFunc(part, func(r rune) bool { return r == '.' })...)
	}
	return out
}
