package discovery

import (
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// Rendered returns ServeHTTP's response to a GET of a path (as in a URL, without the query), if it
// was rendered before. It takes a fraction of a microsecond, never blocks and allocates nothing.
// Nil means that ServeHTTP must be called. The fields' names are in lower case.
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

// asked are the request fields on which the response depends.
type asked struct{ accept, encoding, match, agent string }

// read finds them in a request head. It reports false if one occurs more than once.
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
