package extension

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Request is a request as it arrived. It is recorded once its head was read; Body, Trailer and
// Status are set after the answer.
type Request struct {
	// Seq counts requests, from 1.
	Seq int64
	// Time is when the head was complete.
	Time time.Time
	// Conn counts connections, from 1.
	Conn uint64
	// Proto is HTTP/1.1 or HTTP/2.0; ServerName the SNI, empty if none.
	Proto, ServerName string
	// PeerName is the common name of the client's certificate, PeerSerial its serial number in
	// hexadecimal. Empty: no certificate.
	PeerName, PeerSerial string
	// Verified says that RequestHeaderCA has verified the peer, or is nil.
	Verified bool
	// Method, Target (:path) and Host (:authority) are as on the wire.
	Method, Target, Host string
	// Header is net/http's form of Fields. Trailer is nil if there was none.
	Header, Trailer http.Header
	// Fields are the header lines in order, spelled as on the wire, without pseudo-headers. Nil on
	// HTTP/1.1 if the head was longer than 64 KiB.
	Fields []Field
	// Body is the number of bytes read of the body.
	Body int64
	// Status is the answer's. 0: not answered, or not yet.
	Status int
	// Fault is the fault that was applied. Empty: none.
	Fault Kind
	// Done says that the request has ended.
	Done bool
}

// Field is one header line.
type Field struct {
	Name, Value string // the name as on the wire, the value without surrounding blanks
}

// exchange is one request with what faults need to reach the connection.
type exchange struct {
	conn   *connection
	stream *h2stream // nil on HTTP/1.1
	fields []Field
}

// ring keeps the last requests.
type ring struct {
	size int

	mu   sync.Mutex // guards the fields below
	seq  int64
	kept []*Request // at most size; oldest first
}

// add records a request and returns its record, which only finish may change.
func (r *ring) add(req *http.Request, x *exchange, fault Kind) *Request {
	if r.size == 0 {
		return nil
	}
	rec := &Request{
		Time: time.Now(), Conn: x.conn.id, Proto: req.Proto, ServerName: x.conn.state.ServerName, Verified: x.conn.verified,
		Method: req.Method, Target: req.RequestURI[:min(len(req.RequestURI), maxTap)], Host: req.Host, Header: req.Header.Clone(), Fields: x.fields, Fault: fault,
	}
	if peers := x.conn.state.PeerCertificates; len(peers) > 0 {
		rec.PeerName, rec.PeerSerial = peers[0].Subject.CommonName, peers[0].SerialNumber.Text(16)
	}
	if headerBytes(req.Header) > maxTap {
		rec.Header, rec.Fields = nil, nil // too large; their absence shows it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	rec.Seq = r.seq
	if len(r.kept) == r.size {
		r.kept = slices.Delete(r.kept, 0, 1)
	}
	r.kept = append(r.kept, rec)
	return rec
}

func (r *ring) finish(rec *Request, req *http.Request, body *bodyCount, status int) {
	if rec == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec.Body, rec.Status, rec.Done = body.n, status, true
	if len(req.Trailer) > 0 && headerBytes(req.Trailer) <= maxTap {
		rec.Trailer = req.Trailer.Clone()
	}
}

// Requests returns the recorded requests with a Seq above since, oldest first.
func (s *Server) Requests(since int64) []Request {
	r := &s.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []Request{}
	for _, rec := range r.kept {
		if rec.Seq > since {
			out = append(out, *rec)
		}
	}
	return out
}

// Forget drops all recorded requests; numbering continues.
func (s *Server) Forget() {
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	s.ring.kept = nil
}

func headerBytes(h http.Header) int {
	n := 0
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// bodyCount counts what is read. It belongs to the handler's goroutine.
type bodyCount struct {
	io.ReadCloser
	n int64
}

func (b *bodyCount) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}
