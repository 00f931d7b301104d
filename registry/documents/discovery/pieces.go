package discovery

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"slices"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// part is a group-version of the aggregated document.
type part struct {
	group string
	doc   *apidiscoveryv2.APIVersionDiscovery
	// of is its source, and content the source's content then. Nil means the local apiserver.
	of      *source
	content *content
}

// same reports whether two parts have the same content. It compares by identity: a backend's
// response is never changed, only replaced.
func (p part) same(o part) bool {
	a, b := p.doc, o.doc
	return p.group == o.group && p.of == o.of && (a == b || a.Version == b.Version && a.Freshness == b.Freshness &&
		len(a.Resources) == len(b.Resources) && (len(a.Resources) == 0 || &a.Resources[0] == &b.Resources[0]))
}

// piece is a run of groups of the aggregated document. An unchanged piece keeps its text in the
// next document, so that a change costs only the work of its own piece, whatever the number of
// groups.
type piece struct {
	groups []*registry.Group
	parts  []part
	*text
}

// text is a piece as JSON, plain and compressed.
type text struct {
	of            []part
	once, zipOnce sync.Once
	plain         []byte // the groups with commas between them
	zipped        []byte // the same as whole blocks of DEFLATE
}

// pieceGroups is how many groups a piece has on average: some 64 KB. Compressing pieces of that
// size separately loses next to nothing (DEFLATE looks 32 KB back), and takes two milliseconds.
const pieceGroups = 64

// cut merges and makes pieces. Where a piece ends depends on the name of its last group alone, so
// that a new or removed group changes one piece. settled says that since old only the table and
// responses of backends have changed.
func (m *merge) cut(old []piece, settled bool) []piece {
	known := make(map[string]*piece, len(old))
	for i := range old {
		known[old[i].groups[0].Name] = &old[i]
	}
	groups := m.groups()
	out := make([]piece, 0, len(old)+1)
	for i := 1; i <= len(groups); i++ {
		if i < len(groups) && !ends(groups[i-1].Name) {
			continue
		}
		p := piece{groups: groups[:i:i]}
		groups, i = groups[i:], 0
		was := known[p.groups[0].Name]
		if was != nil && settled && was.holds(p.groups) {
			out = append(out, *was)
			continue
		}
		if p.parts = m.parts(p.groups...); len(p.parts) == 0 {
			continue
		}
		if p.text = (&text{of: p.parts}); was != nil && slices.EqualFunc(was.parts, p.parts, part.same) {
			p.text = was.text
		}
		p.groups = slices.Clone(p.groups) // a copy, which does not keep the table's other groups alive
		out = append(out, p)
	}
	return out
}

// holds reports whether the groups still make this piece.
func (p *piece) holds(groups []*registry.Group) bool {
	return slices.Equal(p.groups, groups) && !slices.ContainsFunc(p.parts, func(v part) bool { return v.of != nil && v.of.Load().content != v.content })
}

// ends reports whether a piece ends after a group, by FNV-1a. hash/fnv would need the name as
// bytes, and an allocation for each hash.
func ends(group string) bool {
	h := uint32(2166136261)
	for i := range len(group) {
		h = (h ^ uint32(group[i])) * 16777619
	}
	return h%pieceGroups == 0
}

// groupsOf returns the groups of pieces in Kubernetes' type.
func groupsOf(pieces ...[]part) []apidiscoveryv2.APIGroupDiscovery {
	out := []apidiscoveryv2.APIGroupDiscovery{}
	for _, parts := range pieces {
		for i, v := range parts {
			if i == 0 || v.group != parts[i-1].group {
				out = append(out, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: v.group}})
			}
			g := &out[len(out)-1]
			g.Versions = append(g.Versions, *v.doc)
		}
	}
	return out
}

// json returns the groups as JSON with commas between them.
func (t *text) json() []byte {
	t.once.Do(func() {
		b, _ := json.Marshal(groupsOf(t.of)) // it cannot fail
		t.plain = bytes.Clone(b[1 : len(b)-1])
	})
	return t.plain
}

// body is a text with pieces in it.
type body struct {
	head, tail []byte
	pieces     []*text
}

// newBody makes a body of a document's text and the groups to insert: in the text the last list is
// empty. Nil pieces mean that the text is complete.
func newBody(text []byte, pieces []*text) body {
	if pieces == nil {
		return body{head: text}
	}
	at := bytes.LastIndexByte(text, '[') + 1
	return body{text[:at], text[at:], pieces}
}

// all yields the text in parts.
func (b *body) all(yield func(text []byte, of *text) bool) {
	if !yield(b.head, nil) {
		return
	}
	for i, p := range b.pieces {
		if i > 0 && !yield([]byte{','}, nil) || !yield(p.json(), p) {
			return
		}
	}
	yield(b.tail, nil)
}

func (b *body) size() (n int) {
	for text := range b.all {
		n += len(text)
	}
	return n
}

// join returns the text as one slice.
func (b *body) join() []byte {
	if b.pieces == nil {
		return b.head
	}
	return bytes.Join(b.parts(), nil)
}

// parts returns the parts of the text in order.
func (b *body) parts() [][]byte {
	var out [][]byte
	for text := range b.all {
		out = append(out, text)
	}
	return out
}

// gzip returns the text as one gzip member (RFC 1952). DEFLATE blocks may be independent of each
// other (RFC 1951), so pieces keep the compressed form of earlier documents, and the text between
// them is stored uncompressed.
func (b *body) gzip() []byte {
	if b.pieces == nil {
		return negotiate.Gzip(b.head)
	}
	out := bytes.NewBuffer([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}) // the header of compress/gzip
	z, _ := flate.NewWriter(nil, flate.DefaultCompression)                // the level is valid
	sum, size := uint32(0), 0
	for text, p := range b.all {
		sum, size = crc32.Update(sum, crc32.IEEETable, text), size+len(text)
		if p == nil {
			n := uint16(len(text)) //nolint:gosec // a few words
			out.Write(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16([]byte{0}, n), ^n))
			out.Write(text)
			continue
		}
		out.Write(p.deflate(z))
	}
	out.Write([]byte{1, 0, 0, 0xff, 0xff})                                                                                 // the last, empty block
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(bytes.Clone(out.Bytes()), sum), uint32(size)) // modulo 2^32 (RFC 1952)
}

// deflate returns the groups compressed, by z if that was not done before. The result ends at a
// byte boundary and refers to nothing before it.
func (t *text) deflate(z *flate.Writer) []byte {
	t.zipOnce.Do(func() {
		var b bytes.Buffer
		z.Reset(&b)
		_, _ = z.Write(t.json()) // writing to a bytes.Buffer never fails
		_ = z.Flush()
		t.zipped = bytes.Clone(b.Bytes())
	})
	return t.zipped
}
