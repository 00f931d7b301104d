package discovery

import (
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// Rendered returns what ServeHTTP would answer a GET of a path (as in a URL, without the query), where that was rendered before: it takes a fraction of a
// microsecond, waits for nobody and allocates nothing. Nil: ServeHTTP has to be asked. The fields' names are in lower case.
func (d *Discovery) Rendered(path, query string, fields []hpack.HeaderField) *negotiate.Answer {
	docs := d.view.Load()
	if docs == nil {
		return nil
	}
	asked, ok := read(fields)
	if !ok {
		return nil
	}
	aggregated, legacy := docs.groups, docs.legacy
	switch path {
	case "/apis":
	case "/api":
		if aggregated, legacy = docs.core, docs.versions; legacy == nil || !produces(asked.accept, d.root.supported) {
			return nil
		}
	default:
		return nil
	}
	c, ok := d.root.remembered(asked.accept)
	if !ok || c.refused {
		return nil
	}
	doc := c.of(aggregated, legacy)
	if doc == nil {
		return nil
	}
	gzip := negotiate.TakesGzip(asked.encoding)
	if asked.match != "" {
		tag := doc.known.Load()
		if tag == nil {
			return nil
		}
		if negotiate.Matches(tag.etag, asked.match) {
			return tag.unchanged[at(gzip)]
		}
	}
	c.pretty = c.media == 0 && (c.pretty || wantsPretty(query, asked.agent))
	return doc.at(c).known(gzip).Load()
}

// asked are the fields on which the answer depends.
type asked struct{ accept, encoding, match, agent string }

// read takes them out of a head. It reports false when one stands there more than once.
func read(fields []hpack.HeaderField) (a asked, ok bool) {
	for i := range fields {
		var to *string
		switch fields[i].Name {
		case "accept":
			to = &a.accept
		case "accept-encoding":
			to = &a.encoding
		case "if-none-match":
			to = &a.match
		case "user-agent":
			to = &a.agent
		default:
			continue
		}
		if *to != "" {
			return a, false
		}
		*to = fields[i].Value
	}
	return a, true
}
