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
	// Proto is HTTP/1.1 or HTTP/2.0; ServerName the SNI, empty if none.
	Proto, ServerName string
	// PeerName is the common name of the client's certificate, PeerSerial its serial number in
	// hexadecimal. Empty: no certificate.
	PeerName, PeerSerial string
	// Verified says that RequestHeaderCA has verified the peer, or is nil.
	Verified bool
	// Method, Target (:path) and Host (:authority) are as on the wire.
	Method, Target, Host string
	// Header has the names as net/http spells them. It is nil if it was longer than 64 KiB. Trailer
	// is nil if there was none.
	Header, Trailer http.Header
	// Body is the number of bytes read of the body.
	Body int64
	// Status is the answer's. 0: not answered, or not yet.
	Status int
}

// ring keeps the last requests.
type ring struct {
	size int

	mu   sync.Mutex // guards the fields below
	seq  int64
	kept []*Request // at most size; oldest first
}

// maxRecorded is how much of a head is kept: more than any honest one has.
const maxRecorded = 64 << 10

// add records a request and returns its record, which only finish may change.
func (r *ring) add(req *http.Request, c *connection) *Request {
	if r.size == 0 {
		return nil
	}
	rec := &Request{
		Time: time.Now(), Proto: req.Proto, ServerName: c.state.ServerName, Verified: c.verified,
		Method: req.Method, Target: req.RequestURI[:min(len(req.RequestURI), maxRecorded)], Host: req.Host, Header: recorded(req.Header),
	}
	if peers := c.state.PeerCertificates; len(peers) > 0 {
		rec.PeerName, rec.PeerSerial = peers[0].Subject.CommonName, peers[0].SerialNumber.Text(16)
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
	rec.Body, rec.Status, rec.Trailer = body.n, status, recorded(req.Trailer)
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

// recorded returns a copy of what is kept of h.
func recorded(h http.Header) http.Header {
	n := 0
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	if n > maxRecorded {
		return nil // its absence shows it
	}
	return h.Clone()
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
