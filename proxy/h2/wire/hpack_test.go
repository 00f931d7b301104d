package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func field(name, value string) hpack.HeaderField { return hpack.HeaderField{Name: name, Value: value} }

// hpackPair is our encoder with x/net's decoder, which every Go peer uses.
type hpackPair struct {
	t   testing.TB
	enc *Encoder
	dec *hpack.Decoder
	got []hpack.HeaderField
}

func newHpackPair(t testing.TB) *hpackPair {
	p := &hpackPair{t: t, enc: NewEncoder()}
	p.dec = hpack.NewDecoder(tableSize, func(f hpack.HeaderField) { p.got = append(p.got, f) })
	return p
}

// pass encodes a block and checks that the decoder sees the same fields. It returns the block.
func (p *hpackPair) pass(fields ...hpack.HeaderField) []byte {
	p.t.Helper()
	b := p.enc.Append(nil, fields)
	p.got = nil
	must.Do(p.t, errors.Join(check.Err(p.dec.Write(b)), p.dec.Close()))
	if !slices.Equal(fields, p.got) { // cmp.Diff is too slow to run each time, as this is fuzzed
		p.t.Fatalf("fields differ (-sent +received):\n%s", cmp.Diff(fields, p.got))
	}
	return b
}

// Our static table is that of x/net's decoder. Pseudo-fields are sent as an index, others with that of their name.
func TestEncoderStaticTable(t *testing.T) {
	for i := byte(1); i <= staticFields; i++ {
		f := must.Get(hpack.NewDecoder(0, nil).DecodeFull([]byte{0x80 | i}))(t)[0]
		for _, value := range []string{f.Value, "some"} {
			whole := f.Name[0] == ':' && value != "some"
			got := newHpackPair(t).pass(field(f.Name, value))
			check.Same(t, false, whole != (len(got) == 1) || whole && got[0] != 0x80|i || got[0]&15 == 0 && !whole, "%d: %s: %s is sent as %x", i, f.Name, value, got)
		}
	}
	for _, name := range []string{"x-remote-user", "x-one-byte-above-the-longest", ""} {
		newHpackPair(t).pass(field(name, "some"))
	}
}

func TestEncoderIndexesWhatRepeats(t *testing.T) {
	p := newHpackPair(t)
	agent := field("user-agent", "kubectl/v1.36.3 (linux/amd64)")
	first, second, third := p.pass(agent), p.pass(agent), p.pass(agent)
	check.Same(t, true, first[0]&0xf0 == 0 && second[0]&0xc0 == 0x40 && len(third) == 1 && third[0] == 0x80|62, "a field is sent as %x, %x, %x: want not indexed, added, an index", first, second, third)
	for i := range 1000 { // unique fields do not evict it
		p.pass(field(":path", fmt.Sprintf("/apis/example.com/v1/namespaces/default/things/%d", i)))
	}
	check.Same(t, 1, len(p.pass(agent)), "bytes of a field that repeats, after a thousand unique ones")
}

func TestEncoderNeverIndexesCredentials(t *testing.T) {
	p := newHpackPair(t)
	secret := hpack.HeaderField{Name: "authorization", Value: "Bearer 0123456789", Sensitive: true}
	user := hpack.HeaderField{Name: "x-remote-user", Value: "alice", Sensitive: true}
	for range 3 {
		check.Same(t, 0x10, p.pass(secret)[0]&0xf0, "never indexed, a token's first byte")
		check.Same(t, 0x10, p.pass(user)[0]&0xf0, "never indexed, a user's first byte")
	}
	// Not even after the same field was sent without Sensitive.
	secret.Sensitive = false
	p.pass(secret)
	p.pass(secret)
	secret.Sensitive = true
	check.Same(t, 0x10, p.pass(secret)[0]&0xf0, "never indexed, a token's first byte")
}

// Long heads are Huffman-coded, as far as that costs little. A usual token is not.
func TestEncoderShortensLongHeads(t *testing.T) {
	token := func(n int) hpack.HeaderField { return field("authorization", strings.Repeat("e30.", n/4)) } // 7 of 8 bits
	for _, tc := range []struct {
		name        string
		fields      []hpack.HeaderField
		least, most int
	}{
		{"a usual token", []hpack.HeaderField{token(2000)}, 2000, 2010},
		{"a long one, below nginx's limit", []hpack.HeaderField{token(10_000)}, 6000, 8000},
		{"many fields", slices.Repeat([]hpack.HeaderField{token(1000)}, 100), 60_000, 95_000},
		{"bytes that become longer", []hpack.HeaderField{field("x", strings.Repeat("\xff", 9000))}, 9000, 9010},
		{"more than any server takes", []hpack.HeaderField{token(100_000)}, 100_000, 100_010},
	} {
		check.Within(t, tc.least, tc.most, len(newHpackPair(t).pass(tc.fields...)), "%s: bytes", tc.name)
	}
}

// The table keeps its fields when it grows.
func TestEncoderGrows(t *testing.T) {
	p := newHpackPair(t)
	var fields []hpack.HeaderField
	for i := range 50 {
		f := field("x-a", fmt.Sprint(i))
		p.pass(f, f) // it repeats
		fields = append(fields, f)
	}
	check.Same(t, len(fields), len(p.pass(fields...)), "bytes of so many known fields")
}

func TestEncoderEvictsAndShrinks(t *testing.T) {
	p := newHpackPair(t)
	many := func(n int) {
		for i := range n {
			f := field("name-"+fmt.Sprint(i%200), strings.Repeat("v", i%300))
			p.pass(f, f, f)
		}
	}
	many(1000)
	for _, size := range []uint32{1000, 100, 31, 0} {
		p.enc.SetTableSize(size)
		many(300)
		check.Within(t, 0, int(size), p.enc.size, "bytes in the table")
	}
	for i := range 1000 { // as small as fields can be: the ring is full
		p.pass(field("a", fmt.Sprint(i)), field("a", fmt.Sprint(i)))
	}
}

// FuzzEncoder sends fields that the input selects from a small set, on one connection, with changes
// of the table's size.
func FuzzEncoder(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 255, 0, 1, 2, 3, 4, 4, 4})
	f.Add(bytes.Repeat([]byte{7, 9, 200, 13, 13}, 50))
	f.Fuzz(func(t *testing.T, in []byte) {
		p := newHpackPair(t)
		for len(in) >= 3 {
			n := int(binary.BigEndian.Uint16(in))
			switch kind := in[2]; {
			case kind >= 250:
				p.enc.SetTableSize(uint32(n % (tableSize + 1)))
			case kind >= 200:
				p.pass(hpack.HeaderField{Name: "x-remote-group", Value: strings.Repeat("g", n%64), Sensitive: true})
			case kind >= 150:
				p.pass(field(":status", fmt.Sprint(n%700)), field("etag", fmt.Sprint(n%40)))
			default:
				p.pass(field(fmt.Sprint("n", kind%16), strings.Repeat("v", n%600)), field("content-type", fmt.Sprint(n%9)))
			}
			in = in[3:]
		}
	})
}
