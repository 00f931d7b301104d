package wire

import "golang.org/x/net/http2/hpack"

// There is no map here, because it would cost as much as the encoder saves.

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
	if len(name) >= len(staticNames) {
		return 0
	}
	long := staticNames[len(name)]
	for i := range long {
		// The look at the first byte spares most comparisons.
		if known := &long[i]; known.name[0] == name[0] && known.name == name {
			return known.index
		}
	}
	return 0
}

// staticNames are the names of the static table by length, those of most requests and responses
// first.
var staticNames = [...][]struct { //nolint:gochecknoglobals // a table of RFC 7541 that nothing writes
	name  string
	index uint8
}{
	3:  {{"via", 60}, {"age", 21}},
	4:  {{"date", 33}, {"etag", 34}, {"host", 38}, {"vary", 59}, {"from", 37}, {"link", 45}},
	5:  {{"range", 50}, {":path", 4}, {"allow", 22}},
	6:  {{"accept", 19}, {"cookie", 32}, {"server", 54}, {"expect", 35}},
	7:  {{"referer", 51}, {":method", 2}, {":scheme", 6}, {":status", 8}, {"expires", 36}, {"refresh", 52}},
	8:  {{"if-match", 39}, {"location", 46}, {"if-range", 42}},
	10: {{"user-agent", 58}, {":authority", 1}, {"set-cookie", 55}},
	11: {{"retry-after", 53}},
	12: {{"content-type", 31}, {"max-forwards", 47}},
	13: {{"authorization", 23}, {"cache-control", 24}, {"if-none-match", 41}, {"last-modified", 44}, {"accept-ranges", 18}, {"content-range", 30}},
	14: {{"content-length", 28}, {"accept-charset", 15}},
	15: {{"accept-language", 17}, {"accept-encoding", 16}},
	16: {{"content-encoding", 26}, {"content-language", 27}, {"content-location", 29}, {"www-authenticate", 61}},
	17: {{"if-modified-since", 40}, {"transfer-encoding", 57}},
	18: {{"proxy-authenticate", 48}},
	19: {{"if-unmodified-since", 43}, {"proxy-authorization", 49}, {"content-disposition", 25}},
	25: {{"strict-transport-security", 56}},
	27: {{"access-control-allow-origin", 20}},
}
