package wire

import "golang.org/x/net/http2/hpack"

// Encoder writes field blocks (RFC 7541). It costs a fifth of x/net's, which hashes every field's name and value two to four times and tries Huffman
// coding on all that it has not seen:
//
//   - A field goes into the dynamic table when it is sent the second time. What is sent once (a path, an ETag, another server's request id) would push out
//     what is sent with every request.
//   - Strings are written as they are: Huffman coding saves a fifth of what is no longer in the table, and costs us and the peer more than it saves.
//   - Sensitive fields are never indexed, and their values never looked for.
type Encoder struct {
	fields []hpack.HeaderField // a ring of a power of two: the table's, by number; nil: nothing was added yet
	next   []uint64            // beside fields: the number of the one added before to the same bucket, or one that is gone
	added  uint64              // the number of the field added last; the first is 1
	first  uint64              // the number of the oldest one that is still there
	size   int                 // as RFC 7541 §4.1 counts
	max    int
	update bool // max has changed, which the next block must begin with

	heads [encoderBuckets]uint64 // the number of the field added last to each bucket
	seen  [encoderBuckets]uint16 // what was sent and not added lately, by part of its hash
}

const (
	encoderBuckets = 64  // a connection's constant fields are some twenty; longer chains only cost comparisons
	fieldOverhead  = 32  // RFC 7541 §4.1
	staticFields   = 61  // Appendix A
	maxIndexed     = 512 // a field that is longer would push out too much: what repeats at that length is a token, and those are not indexed
)

// NewEncoder makes a connection's encoder.
func NewEncoder() *Encoder { return &Encoder{max: tableSize, first: 1} }

// Append writes the block of a field section that is the lists together.
func (e *Encoder) Append(b []byte, lists ...[]hpack.HeaderField) []byte {
	if e.update {
		e.update = false
		b = appendInt(b, 0x20, 5, uint64(e.max)) // §6.3
	}
	for _, fields := range lists {
		for i := range fields {
			b = e.field(b, &fields[i])
		}
	}
	return b
}

// SetTableSize is told SETTINGS_HEADER_TABLE_SIZE. The table only ever shrinks: growing it again is allowed but needs two size updates in
// one block (RFC 7541 §4.2), which x/net's decoder, and so every Go peer, takes for an error while the table holds entries.
func (e *Encoder) SetTableSize(size uint32) {
	if size < uint32(e.max) {
		e.max, e.update = int(size), true
		e.evict(0)
	}
}

// evict makes room for a field of a size.
func (e *Encoder) evict(size int) {
	for e.size > 0 && e.size+size > e.max {
		f := &e.fields[e.first&uint64(len(e.fields)-1)]
		e.size -= len(f.Name) + len(f.Value) + fieldOverhead
		*f = hpack.HeaderField{}
		e.first++
	}
}

// field writes one field.
func (e *Encoder) field(b []byte, f *hpack.HeaderField) []byte {
	if f.Sensitive {
		return appendLiteral(b, 0x10, 4, f) // §6.2.3
	}
	if i := staticField(f); i != 0 {
		return append(b, 0x80|i) // §6.1
	}
	size := len(f.Name) + len(f.Value) + fieldOverhead
	if size > min(e.max, maxIndexed) {
		return appendLiteral(b, 0, 4, f) // §6.2.2
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
	mark := uint16(h>>16) | 1 // 0 is nothing seen
	if place := &e.seen[h>>8%encoderBuckets]; *place != mark {
		*place = mark
		return appendLiteral(b, 0, 4, f)
	}
	e.add(f, size, bucket)
	return appendLiteral(b, 0x40, 6, f) // §6.2.1
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

// grow doubles the ring: to 128 at most, because no field counts for less than 32 bytes of 4,096.
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

// hashField looks at the lengths, the end of the name and both ends of the value: what differs elsewhere only costs a comparison.
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

// word is eight bytes of s; the compiler makes one load of it.
func word(s string, i int) uint64 {
	s = s[i : i+8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// appendLiteral writes a field whose name may be in the static table, with an index of n bits (§6.2).
func appendLiteral(b []byte, kind byte, n uint8, f *hpack.HeaderField) []byte {
	name := staticName(f.Name)
	b = appendInt(b, kind, n, uint64(name))
	if name == 0 {
		b = appendText(b, f.Name)
	}
	return appendText(b, f.Value)
}

// appendText writes a string without Huffman coding (§5.2).
func appendText(b []byte, s string) []byte {
	return append(appendInt(b, 0, 7, uint64(len(s))), s...)
}

// appendInt writes an integer behind the bits of a first byte of which it may use n (§5.1).
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
