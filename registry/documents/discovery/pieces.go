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
	// of is where it comes from, and content what was known there. Nil: the local apiserver.
	of      *source
	content *content
}

// same reports whether two parts have the same content. It looks at no more than what makes them so: what backends have said is not changed, but replaced.
func (p part) same(o part) bool {
	a, b := p.doc, o.doc
	return p.group == o.group && p.of == o.of && (a == b || a.Version == b.Version && a.Freshness == b.Freshness &&
		len(a.Resources) == len(b.Resources) && (len(a.Resources) == 0 || &a.Resources[0] == &b.Resources[0]))
}

// piece is a run of groups of the aggregated document. What has not changed has the same text in the next document, so that a change costs what its own groups cost,
// however many others there are.
type piece struct {
	groups []*registry.Group
	parts  []part
	*text
}

// text is a piece as JSON and compressed.
type text struct {
	of            []part
	once, zipOnce sync.Once
	plain         []byte // the groups with commas between them
	zipped        []byte // the same as whole blocks of DEFLATE
}

// pieceGroups is how many groups a piece has, on average: some 64 KB, of which compressing each by itself loses next to nothing (DEFLATE looks 32 KB back), and which is done in
// two milliseconds.
const pieceGroups = 64

// cut merges, and makes pieces. Where one ends depends on the name of its last group alone, so a group that comes or goes changes one piece. settled says that nothing
// has changed since old but the table and what backends have said.
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
		p.groups = slices.Clone(p.groups) // without all others of the table
		out = append(out, p)
	}
	return out
}

// holds reports whether the piece is what the groups contribute now.
func (p *piece) holds(groups []*registry.Group) bool {
	return slices.Equal(p.groups, groups) && !slices.ContainsFunc(p.parts, func(v part) bool { return v.of != nil && v.of.Load().content != v.content })
}

// ends reports whether a piece ends after a group, by FNV-1a. hash/fnv wants bytes, and a hash of its own for each.
func ends(group string) bool {
	h := uint32(2166136261)
	for i := range len(group) {
		h = (h ^ uint32(group[i])) * 16777619
	}
	return h%pieceGroups == 0
}

// groupsOf are the groups of pieces as Kubernetes has them.
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
		b, _ := json.Marshal(groupsOf(t.of)) // it holds nothing that cannot be encoded
		t.plain = bytes.Clone(b[1 : len(b)-1])
	})
	return t.plain
}

// body is a text with pieces in it.
type body struct {
	head, tail []byte
	pieces     []*text
}

// newBody makes a body of a document and the groups that it lacks: its last list is empty. Without pieces it lacks nothing.
func newBody(text []byte, pieces []*text) body {
	if pieces == nil {
		return body{head: text}
	}
	at := bytes.LastIndexByte(text, '[') + 1
	return body{text[:at], text[at:], pieces}
}

// all yields the text.
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

// join returns the text in one.
func (b *body) join() []byte {
	if b.pieces == nil {
		return b.head
	}
	return bytes.Join(b.parts(), nil)
}

// parts are the text in order.
func (b *body) parts() [][]byte {
	var out [][]byte
	for text := range b.all {
		out = append(out, text)
	}
	return out
}

// gzip is the text as one member of gzip (RFC 1952): DEFLATE's blocks need not know of each other (RFC 1951), so pieces stand there as they were compressed for other
// documents, and what is between them as it is.
func (b *body) gzip() []byte {
	if b.pieces == nil {
		return negotiate.Gzip(b.head)
	}
	out := bytes.NewBuffer([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}) // as compress/gzip begins
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
	out.Write([]byte{1, 0, 0, 0xff, 0xff})                                                                                 // the last block, which is empty
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(bytes.Clone(out.Bytes()), sum), uint32(size)) // modulo 2^32, as RFC 1952 has it
}

// deflate returns the groups compressed, by z if that was not done before. They end at a byte and refer to nothing before them.
func (t *text) deflate(z *flate.Writer) []byte {
	t.zipOnce.Do(func() {
		var b bytes.Buffer
		z.Reset(&b)
		_, _ = z.Write(t.json()) // a bytes.Buffer takes everything
		_ = z.Flush()
		t.zipped = bytes.Clone(b.Bytes())
	})
	return t.zipped
}
