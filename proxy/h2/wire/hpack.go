package wire

import "golang.org/x/net/http2/hpack"

// Encoder writes field blocks (RFC 7541). It costs a fifth of x/net's encoder, which hashes every field's name and
// value two to four times and tries Huffman coding on every string that it has not seen:
//
//   - A field is added to the dynamic table when it is sent the second time. Fields that are sent
//     once (a path, an ETag, another server's request id) would evict fields that are sent with
//     every request.
//   - Only long strings, and those after the first longBlock bytes, are Huffman-coded. For others
//     that would save a fifth of what is not in the table, and cost us and the peer more than it
//     saves. But servers end connections for long blocks, and nginx for a string above 8 KiB.
//   - Sensitive fields are never indexed, and their values are never looked up.
type Encoder struct {
	fields []hpack.HeaderField // the dynamic table: a ring indexed by number, length a power of two; nil while empty
	next   []uint64            // for each of fields: the number added before it to the same bucket, perhaps evicted
	added  uint64              // the number of the newest field; numbers start at 1
	first  uint64              // the number of the oldest field still in the table
	size   int                 // as defined in RFC 7541 §4.1
	max    int
	update bool // max has changed: the next block must begin with a size update
	short  int  // the output up to which short strings are not Huffman-coded

	heads [encoderBuckets]uint64 // the newest number in each bucket
	seen  [encoderBuckets]uint16 // parts of hashes of fields that were sent lately and not added
}

const (
	encoderBuckets = 64      // a connection has about twenty constant fields; longer chains only cost comparisons
	fieldOverhead  = 32      // RFC 7541 §4.1
	staticFields   = 61      // Appendix A
	maxIndexed     = 512     // longer fields would evict too much: those that repeat are tokens, never indexed
	longString     = 2 << 10 // above the usual tokens
	longBlock      = 8 << 10 // above the usual heads: a GET's
	// mostCoded bounds the work, a third of a millisecond: no known server takes longer blocks than
	// this and refuses those that are a quarter longer.
	mostCoded = 64 << 10
)

// NewEncoder returns an encoder for one connection.
func NewEncoder() *Encoder { return &Encoder{max: tableSize, first: 1} }

// Append appends the block of one field section, which is all lists together.
func (e *Encoder) Append(b []byte, lists ...[]hpack.HeaderField) []byte {
	if e.update {
		e.update = false
		b = appendInt(b, 0x20, 5, uint64(e.max)) // §6.3
	}
	e.short = len(b) + longBlock
	for _, fields := range lists {
		for i := range fields {
			b = e.field(b, &fields[i])
		}
	}
	return b
}

// SetTableSize applies the peer's SETTINGS_HEADER_TABLE_SIZE. The table only shrinks: growing needs two size updates in
// one block (RFC 7541 §4.2), which x/net's decoder, and so every Go peer, rejects while it holds entries.
func (e *Encoder) SetTableSize(size uint32) {
	if size < uint32(e.max) {
		e.max, e.update = int(size), true
		e.evict(0)
	}
}

func (e *Encoder) evict(size int) {
	for e.size > 0 && e.size+size > e.max {
		f := &e.fields[e.first&uint64(len(e.fields)-1)]
		e.size -= len(f.Name) + len(f.Value) + fieldOverhead
		*f = hpack.HeaderField{}
		e.first++
	}
}

func (e *Encoder) field(b []byte, f *hpack.HeaderField) []byte {
	if f.Sensitive {
		return e.literal(b, 0x10, 4, f) // §6.2.3
	}
	if i := staticField(f); i != 0 {
		return append(b, 0x80|i) // §6.1
	}
	size := len(f.Name) + len(f.Value) + fieldOverhead
	if size > min(e.max, maxIndexed) {
		return e.literal(b, 0, 4, f) // §6.2.2
	}
	h := hashField(f)
	bucket := h % encoderBuckets
	for n := e.heads[bucket]; n >= e.first; {
		at := n & uint64(len(e.fields)-1)
		if have := &e.fields[at]; have.Value == f.Value && have.Name == f.Name {
			return appendInt(b, 0x80, 7, staticFields+1+e.added-n)
		}
		n = e.next[at]
	}
	mark := uint16(h>>16) | 1 // 0 means that nothing was seen
	if place := &e.seen[h>>8%encoderBuckets]; *place != mark {
		*place = mark
		return e.literal(b, 0, 4, f)
	}
	e.add(f, size, bucket)
	return e.literal(b, 0x40, 6, f) // §6.2.1
}

func (e *Encoder) add(f *hpack.HeaderField, size int, bucket uint32) {
	e.evict(size)
	if int(e.added+1-e.first) == len(e.fields) {
		e.grow()
	}
	e.added++
	at := e.added & uint64(len(e.fields)-1)
	e.fields[at], e.next[at] = hpack.HeaderField{Name: f.Name, Value: f.Value}, e.heads[bucket]
	e.heads[bucket] = e.added
	e.size += size
}

// grow doubles the ring, to 128 at most: each field counts for at least 32 of 4,096 bytes.
func (e *Encoder) grow() {
	const least = 16
	n := uint64(max(least, 2*len(e.fields)))
	fields, next := make([]hpack.HeaderField, n), make([]uint64, n)
	for i := e.first; i <= e.added; i++ {
		from := i & uint64(len(e.fields)-1)
		fields[i&(n-1)], next[i&(n-1)] = e.fields[from], e.next[from]
	}
	e.fields, e.next = fields, next
}

// hashField hashes the lengths, the name's end and both ends of the value. Fields that differ elsewhere are compared.
func hashField(f *hpack.HeaderField) uint32 {
	h := uint64(len(f.Name))<<32 ^ uint64(len(f.Value))
	h = (h ^ lastBytes(f.Name)) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29 ^ firstBytes(f.Value)) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>32 ^ lastBytes(f.Value)) * 0x94d049bb133111eb
	return uint32(h >> 32)
}

func firstBytes(s string) (v uint64) {
	if len(s) >= 8 {
		return word(s, 0)
	}
	for i := range len(s) {
		v = v<<8 | uint64(s[i])
	}
	return v
}

func lastBytes(s string) uint64 {
	if len(s) >= 8 {
		return word(s, len(s)-8)
	}
	return firstBytes(s)
}

// word returns eight bytes of s; the compiler makes one load of it.
func word(s string, i int) uint64 {
	s = s[i : i+8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// literal writes a field as a literal (§6.2), its name as an n-bit static index if there is one.
func (e *Encoder) literal(b []byte, kind byte, n uint8, f *hpack.HeaderField) []byte {
	name := staticName(f.Name)
	b = appendInt(b, kind, n, uint64(name))
	if name == 0 {
		b = e.text(b, f.Name)
	}
	return e.text(b, f.Value)
}

// text writes a string (§5.2), Huffman-coded if it is long and becomes shorter.
func (e *Encoder) text(b []byte, s string) []byte {
	if (len(s) > longString || len(b) > e.short) && len(b)+len(s) < e.short+mostCoded {
		if n := hpack.HuffmanEncodeLength(s); n < uint64(len(s)) {
			return hpack.AppendHuffmanString(appendInt(b, 0x80, 7, n), s)
		}
	}
	return append(appendInt(b, 0, 7, uint64(len(s))), s...)
}

// appendInt writes an integer with an n-bit prefix in the first byte (§5.1).
func appendInt(b []byte, first byte, n uint8, v uint64) []byte {
	most := uint64(1)<<n - 1
	if v < most {
		return append(b, first|byte(v))
	}
	b = append(b, first|byte(most))
	for v -= most; v >= 128; v >>= 7 {
		b = append(b, 0x80|byte(v))
	}
	return append(b, byte(v))
}

// static is the table of RFC 7541, Appendix A, staticNames its names by length: a map costs what the encoder saves.
var static, staticNames = staticTable() //nolint:gochecknoglobals // nothing writes them

// staticEntry is a name of the static table, with its first index.
type staticEntry struct {
	name  string
	index uint8
}

// staticTable asks the decoder of x/net, which has the table.
func staticTable() (fields [staticFields + 1]hpack.HeaderField, names [28][]staticEntry) {
	dec := hpack.NewDecoder(0, nil)
	for i := uint8(1); i <= staticFields; i++ {
		f, err := dec.DecodeFull([]byte{0x80 | i}) // §6.1
		if err != nil {
			panic(err)
		}
		fields[i] = f[0]
		if name := f[0].Name; name != fields[i-1].Name {
			names[len(name)] = append(names[len(name)], staticEntry{name, i})
		}
	}
	return fields, names
}

// staticField returns the index of a field, name and value, in the static table. Zero means that it is not there. It
// looks up pseudo-fields only: the table has one other field with a value, which clients do not send today.
func staticField(f *hpack.HeaderField) uint8 {
	if f.Name == "" || f.Name[0] != ':' {
		return 0
	}
	first := staticName(f.Name)
	for i := first; i != 0 && static[i].Name == static[first].Name; i++ {
		if static[i].Value == f.Value {
			return i
		}
	}
	return 0
}

// staticName returns the first index of a name in the static table. Zero means that it is not there.
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

// Least returns the least Excess of a block's section before it is decoded. Fields without a name, those that are
// dropped and updates of the table count, too: a field of two bytes moves the whole table, which takes 0.4 µs.
func (*FieldSection) Least(block []byte) int {
	if excess(fieldOverhead*len(block), len(block)) == 0 {
		return 0 // a short block, whatever is in it
	}
	n := 0
	for p := block; len(p) > 0; n++ {
		prefix, texts := byte(1<<7-1), 0 // RFC 7541 §6.1
		switch b := p[0]; {
		case b < 0x20: // §6.2.2, §6.2.3
			prefix, texts = 1<<4-1, 1
		case b < 0x40: // §6.3
			prefix = 1<<5 - 1
		case b < 0x80: // §6.2.1
			prefix, texts = 1<<6-1, 1
		}
		if p[0]&prefix == 0 {
			texts *= 2 // the name, too
		}
		var length int
		for _, p = cutInt(p, prefix); texts > 0 && len(p) > 0; texts-- {
			length, p = cutInt(p, 1<<7-1) // §5.2
			p = p[min(length, len(p)):]
		}
	}
	return excess(fieldOverhead*n, len(block))
}

// cutInt cuts off an integer whose first byte has the bits of prefix for it (§5.1). It accepts what no decoder does.
func cutInt(p []byte, prefix byte) (v int, rest []byte) {
	v, rest = int(p[0]&prefix), p[1:]
	for shift, more := 0, v == int(prefix); more && len(rest) > 0; shift += 7 {
		v += int(rest[0]&0x7f) << min(shift, 31)
		more, rest = rest[0] >= 0x80, rest[1:]
	}
	return v, rest
}
