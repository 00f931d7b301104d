package wire

import "golang.org/x/net/http2/hpack"

// These are switches because a map would cost as much as the encoder saves.

// staticField returns the index of a field, name and value, in the static table (RFC 7541, Appendix
// A). Zero means that it is not there. It looks up pseudo-fields only: the table has one other
// field with a value, which clients do not send today.
func staticField(f *hpack.HeaderField) uint8 {
	if f.Name == "" || f.Name[0] != ':' {
		return 0
	}
	switch f.Name {
	case ":method":
		return staticValue(f.Value, 2, "GET", "POST")
	case ":path":
		return staticValue(f.Value, 4, "/", "/index.html")
	case ":scheme":
		return staticValue(f.Value, 6, "http", "https")
	case ":status":
		return staticValue(f.Value, 8, "200", "204", "206", "304", "400", "404", "500")
	}
	return 0
}

// staticValue finds a value among those of one name, whose first index is first.
func staticValue(value string, first uint8, values ...string) uint8 {
	for i, v := range values {
		if v == value {
			return first + uint8(i)
		}
	}
	return 0
}

// staticName returns the index of a name in the static table. Zero means that it is not there.
func staticName(name string) uint8 {
	if name == "" || name[0] == 'x' { // X-Remote-User and the like
		return 0
	}
	switch name {
	case ":authority":
		return 1
	case ":method":
		return 2
	case ":path":
		return 4
	case ":scheme":
		return 6
	case ":status":
		return 8
	}
	if i := staticCommon(name); i != 0 {
		return i
	}
	return staticRare(name)
}

// staticCommon has the names of requests, and of most responses.
func staticCommon(name string) uint8 {
	switch name {
	case "accept-language":
		return 17
	case "accept":
		return 19
	case "authorization":
		return 23
	case "cache-control":
		return 24
	case "content-encoding":
		return 26
	case "content-length":
		return 28
	case "content-type":
		return 31
	case "cookie":
		return 32
	case "date":
		return 33
	case "etag":
		return 34
	case "host":
		return 38
	case "if-match":
		return 39
	case "if-modified-since":
		return 40
	case "if-none-match":
		return 41
	case "if-unmodified-since":
		return 43
	case "last-modified":
		return 44
	case "location":
		return 46
	case "proxy-authorization":
		return 49
	case "range":
		return 50
	case "referer":
		return 51
	case "retry-after":
		return 53
	case "server":
		return 54
	case "user-agent":
		return 58
	case "vary":
		return 59
	case "via":
		return 60
	}
	return 0
}

// staticRare has the other names.
func staticRare(name string) uint8 {
	switch name {
	case "accept-encoding":
		return 16
	case "accept-charset":
		return 15
	case "accept-ranges":
		return 18
	case "access-control-allow-origin":
		return 20
	case "age":
		return 21
	case "allow":
		return 22
	case "content-disposition":
		return 25
	case "content-language":
		return 27
	case "content-location":
		return 29
	case "content-range":
		return 30
	case "expect":
		return 35
	case "expires":
		return 36
	case "from":
		return 37
	case "if-range":
		return 42
	case "link":
		return 45
	case "max-forwards":
		return 47
	case "proxy-authenticate":
		return 48
	case "refresh":
		return 52
	case "set-cookie":
		return 55
	case "strict-transport-security":
		return 56
	case "transfer-encoding":
		return 57
	case "www-authenticate":
		return 61
	}
	return 0
}
