package proportion

import (
	"encoding/base64"
	"fmt"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// Head is what a client chooses of a request's head.
type Head struct {
	Path   string              // the path with the query
	Fields []hpack.HeaderField // have names in lower case
}

// Size is the head's size over HTTP/1.1.
func (h *Head) Size() int {
	n := len(h.Path)
	for _, f := range h.Fields {
		n += len(f.Name) + len(f.Value) + len(": \r\n")
	}
	return n
}

// Lines are n fields over HTTP/1.1. A name with a verb differs in each.
func Lines(n int, name, value string) string {
	var b strings.Builder
	for i := range n {
		if strings.Contains(name, "%") {
			_, _ = fmt.Fprintf(&b, name+": %s\r\n", i, value)
		} else {
			_, _ = fmt.Fprintf(&b, "%s: %s\r\n", name, value)
		}
	}
	return b.String()
}

// Small, smallTarget and smallQuery are sizes of the smaller head of TestInProportion. One of four
// times as much is still read, and not refused for its size or its number of fields. Targets stay
// above what is cached of one, decoded; selectors below what is ignored.
const (
	Small       = 7 << 10
	smallTarget = 32 << 10
	smallQuery  = 1900
)

// Shape is a kind of heads, or of a backend's: what there is much of.
type Shape struct {
	Name  string // says what it is
	Small int    // the smaller size
	// Of makes one of some size in bytes. base is the path of a request that is answered.
	Of func(base string, size int) Head
}

// Plain is what others are compared with: one field.
func Plain() Shape { return field("one plain field", "x-plain", "v", "") }

// Heads are the dimensions of a request's head. A new one is a line.
func Heads() []Shape {
	const socket = "base64url.bearer.authorization.k8s.io."
	jwt := func(claims string) string {
		return "Bearer " + encode(`{"alg":"RS256","kid":"k"}`) + "." + encode(claims) + ".c2ln"
	}
	return append([]Shape{
		Plain(),
		fields("short names", func(i int) (string, string) { return name(i), "" }),
		fields("one name again and again", func(int) (string, string) { return "x", "1" }),
		fields("long names", func(i int) (string, string) { return strings.Repeat("n", 200) + name(i), "1" }),
		fields("long values", func(i int) (string, string) { return "x-" + name(i), strings.Repeat("v", 900) }),
		// The heads of the review: Q1 in its proportion of names to fields, and Q2.
		mixed("names in Connection, and fields (Q1)", "connection", func(i int) string { return "c" + name(i) }, func(i int) (string, string) { return "f" + name(i), "" }),
		fields("cookies (Q2)", func(i int) (string, string) { return "cookie", fmt.Sprintf("a=%030d", i) }),
		field("one long cookie", "cookie", "a=b; ", ""),
		fields("Connection, a name in each", func(i int) (string, string) { return "connection", "c" + name(i) }),
		field("commas in Connection", "connection", ",", "a"),
		field("Connection: upgrade, again and again", "connection", "upgrade,", "close"),
		field("long name in Connection", "connection", "c", ""),
		mixed("Connection and Trailer", "trailer", func(i int) string { return "t" + name(i) }, func(i int) (string, string) { return "connection", "t" + name(i) }),
		field("Accept: alternatives", "accept", "application/json;as=Table;v=v1;g=meta.k8s.io,", "*/*"),
		field("Accept: parameters", "accept", "a/b;", "q=1"),
		field("Accept: commas", "accept", ",", "*/*"),
		fields("Accept, again and again", func(i int) (string, string) { return "accept", "application/x" + name(i) }),
		field("Accept-Encoding", "accept-encoding", "br;q=0.5, ", "gzip"),
		field("If-None-Match", "if-none-match", `W/"abcdef", `, `"x"`),
		field("User-Agent", "user-agent", "kubectl ", ""),
		field("User-Agent, escaped", "user-agent", "\"\\\xff", ""),
		field("X-Forwarded-For", "x-forwarded-for", "192.0.2.1, ", "::1"),
		fields("X-Forwarded-For, again and again", func(int) (string, string) { return "x-forwarded-for", "192.0.2.1" }),
		field("Forwarded", "forwarded", `for="[2001:db8::1]";by=x, `, "for=y"),
		field("Via", "via", "1.1 proxy, ", "2 x"),
		field("X-Real-Ip", "x-real-ip", "192.0.2.1 ", ""),
		field("Sec-WebSocket-Protocol", "sec-websocket-protocol", "v4.channel.k8s.io, ", "v5"),
		field("a token in the subprotocols", "sec-websocket-protocol", "x, ", socket+encode("token")),
		field("almost tokens in the subprotocols", "sec-websocket-protocol", socket[:len(socket)-1]+",", "x"),
		fields("subprotocols, again and again", func(i int) (string, string) { return "sec-websocket-protocol", "p" + name(i) }),
		field("TE", "te", "gzip;q=0.1, ", "trailers"),
		field("Trailer", "trailer", "x-a, ", "x-b"),
		fields("groups to impersonate", func(i int) (string, string) { return "impersonate-group", "g" + name(i) }),
		fields("system:authenticated, again and again", func(int) (string, string) { return "impersonate-group", "system:authenticated" }),
		fields("extras to impersonate", func(i int) (string, string) { return "impersonate-extra-" + name(i), "v" }),
		fields("one extra to impersonate", func(i int) (string, string) { return "impersonate-extra-a", name(i) }),
		fields("groups of a front proxy", func(i int) (string, string) { return "x-remote-group", "g" + name(i) }),
		fields("extras of a front proxy", func(i int) (string, string) { return "x-remote-extra-" + name(i), "v" }),
		fields("escaped extras of a front proxy", func(i int) (string, string) { return "x-remote-extra-%2" + name(i), "v" }),
		fields("X_Remote in any spelling", func(i int) (string, string) { return "x_remote-group" + name(i), "v" }),
		fields("Authorization, again and again", func(i int) (string, string) { return "authorization", "Bearer t" + name(i) }),
		field("Authorization: spaces", "authorization", " ", "Bearer x"),
		field("a long token", "authorization", "t", ""),
		field("segments of a token", "authorization", "a.", "b"),
		{"claims of a token", Small, func(base string, size int) Head {
			return Head{base, []hpack.HeaderField{{Name: "authorization", Value: jwt(`{"iss":"x"` + repeat(size, func(i int) string { return fmt.Sprintf(`,"c%d":1`, i) }) + `}`)}}}
		}},
		{"groups of a token", Small, func(base string, size int) Head {
			return Head{base, []hpack.HeaderField{{Name: "authorization", Value: jwt(`{"iss":"x","groups":["g"` + repeat(size, func(int) string { return `,"g"` }) + `]}`)}}}
		}},
		{"depth of a token", Small, func(base string, size int) Head {
			return Head{base, []hpack.HeaderField{{Name: "authorization", Value: jwt(`{"a":` + strings.Repeat("[", size/2) + strings.Repeat("]", size/2) + `}`)}}}
		}},
		field("Audit-Id", "audit-id", "a", ""),
		field("tracestate", "tracestate", "a=b,", "c=d"),
		fields("tracestate, again and again", func(i int) (string, string) { return "tracestate", name(i) + "=1" }),
		field("baggage", "baggage", "a=b,", "c=d"),
		field("the loop header", "fairlead-via", "aaaa, ", ""),
		field("Content-Type", "content-type", "a/b;c=d;", "e=f"),
		field("Origin", "origin", "//127.0.0.", ""),
		fields("long names that begin alike", func(i int) (string, string) { return strings.Repeat("n", 64) + name(i), "" }),
	}, targets()...)
}

// targets are dimensions of the path and the query.
func targets() []Shape {
	return []Shape{
		path("slashes", "/"), path("segments", "/a"), path("dot segments", "/a/.."), path("escaped dot segments", "/%2e%2e/a"), path("escapes", "%61"), path("escaped slashes", "%2f"),
		path("escaped escapes", "%25"), path("semicolons", ";a"), path("backslashes", `\`), path("letters beyond ASCII", "%c3%a4"), path("one long segment", "a"),
		query("one long value", "a=", "v"), query("parameters", "", "a=b&"), query("ampersands", "", "&"), query("semicolons in a query", "", "a;b&"), query("escapes in a query", "a=", "%26"),
		query("the same parameter", "", "watch=0&"), query("timeouts", "", "timeout=x&"), query("names of secrets", "", "token=x&"), query("broken escapes", "", "%zz=%&"),
		query("label selectors", "labelSelector=a", "%2Cb"), query("label selectors with values", "labelSelector=a", "%2Cb+in+(c%2Cd)"), query("values of a label selector", "labelSelector=a+in+(b", "%2Cc"),
		query("field selectors", "fieldSelector=metadata.name%3Da", "%2Cspec.x%3Db"), query("selectors, again and again", "", "labelSelector=a&"),
	}
}

// Answers are dimensions of a backend's head. The path is ignored.
func Answers() []Shape {
	return []Shape{
		Plain(),
		fields("short names", func(i int) (string, string) { return name(i), "" }),
		fields("one name again and again", func(int) (string, string) { return "x", "1" }),
		fields("long values", func(i int) (string, string) { return "x-" + name(i), strings.Repeat("v", 900) }),
		mixed("names in Connection, and fields (Q3)", "connection", func(i int) string { return "c" + name(i) }, func(i int) (string, string) { return "f" + name(i), "" }),
		fields("Connection, a name in each", func(i int) (string, string) { return "connection", "c" + name(i) }),
		field("commas in Connection", "connection", ",", "a"),
		fields("cookies to set", func(i int) (string, string) { return "set-cookie", "a=" + name(i) }),
		field("Vary", "vary", "a, ", "b"),
		fields("Warning", func(i int) (string, string) { return "warning", fmt.Sprintf(`299 - "%d"`, i) }),
		fields("Link", func(i int) (string, string) { return "link", "</" + name(i) + ">; rel=preload" }),
		field("Location", "location", "/a", ""),
		field("Content-Type", "content-type", "a/b;c=d;", "e=f"),
		fields("Access-Control-Allow-Headers", func(i int) (string, string) { return "access-control-allow-headers", name(i) }),
		field("Trailer", "trailer", "x-a, ", "x-b"),
		field("Etag", "etag", "a", ""),
	}
}

// field has one field, whose value repeats unit up to the size, and ends as given.
func field(what, name, unit, end string) Shape {
	return Shape{what, Small, func(base string, size int) Head {
		return Head{base, []hpack.HeaderField{{Name: name, Value: strings.Repeat(unit, max(size/len(unit), 1)) + end}}}
	}}
}

// fields has as many fields as fit.
func fields(what string, of func(i int) (name, value string)) Shape {
	return Shape{what, Small, func(base string, size int) Head {
		h := Head{Path: base}
		for i := 0; size > 0; i++ {
			name, value := of(i)
			h.Fields = append(h.Fields, hpack.HeaderField{Name: name, Value: value})
			size -= len(name) + len(value) + len(": \r\n")
		}
		return h
	}}
}

// mixed has as many names in one field as fit in half of the size, and fields in the other half.
func mixed(what, in string, listed func(i int) string, of func(i int) (name, value string)) Shape {
	rest := fields("", of)
	return Shape{what, Small, func(base string, size int) Head {
		h := rest.Of(base, size/2)
		h.Fields = append(h.Fields, hpack.HeaderField{Name: in, Value: repeat(size/2, func(i int) string { return listed(i) + "," })})
		return h
	}}
}

func path(what, unit string) Shape {
	return Shape{what, smallTarget, func(base string, size int) Head { return Head{Path: base + strings.Repeat(unit, size/len(unit))} }}
}

func query(what, begin, unit string) Shape {
	small := smallTarget
	if strings.Contains(what, "selector") {
		small = smallQuery
	}
	return Shape{what, small, func(base string, size int) Head {
		return Head{Path: base + "?" + begin + strings.Repeat(unit, size/len(unit))}
	}}
}

func repeat(size int, of func(i int) string) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		b.WriteString(of(i))
	}
	return b.String()
}

func encode(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// name returns the i-th of many short names.
func name(i int) string {
	s := []byte{'a' + byte(i%26)}
	for i /= 26; i > 0; i /= 26 {
		s = append(s, 'a'+byte(i%26))
	}
	return string(s)
}
