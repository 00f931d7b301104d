package extension

import (
	"crypto/tls"
	"strings"
	"sync"
	"time"
)

// Kind is a way to misbehave.
type Kind string

// The kinds. The first group concerns connections: Path, Method and Every do not apply to it. The
// others concern requests.
const (
	// Refuse closes the port: new connections are refused, open ones live on.
	Refuse Kind = "refuse"
	// Dead closes the port and resets every open connection, as when the process dies.
	Dead Kind = "dead"
	// HangConnect accepts new connections and never says a word on them, not even of TLS.
	HangConnect Kind = "hang-connect"
	// Freeze stops reading and writing on all connections, pings included, as when the network
	// drops every packet.
	Freeze Kind = "freeze"
	// WrongCA serves a certificate of another CA, which has the same name.
	WrongCA Kind = "wrong-ca"
	// WrongName serves a certificate for another host.
	WrongName Kind = "wrong-name"
	// NoNames serves a certificate with a common name only.
	NoNames Kind = "no-names"
	// Expired serves a certificate that was valid until a minute ago.
	Expired Kind = "expired"
	// NotYetValid serves a certificate that will be valid in an hour.
	NotYetValid Kind = "not-yet-valid"
	// SHA1 serves a certificate signed with SHA-1.
	SHA1 Kind = "sha1"
	// HTTP1Only and HTTP2Only take the other protocol out of ALPN.
	HTTP1Only Kind = "http1-only"
	// HTTP2Only is HTTP1Only's sister.
	HTTP2Only Kind = "http2-only"

	// Hang never answers.
	Hang Kind = "hang"
	// HangBody answers with status and headers and never with the body.
	HangBody Kind = "hang-body"
	// Slow waits Delay before the request is handled.
	Slow Kind = "slow"
	// SlowBody sends Size bytes (0: 1,000) in ten pieces, Delay apart.
	SlowBody Kind = "slow-body"
	// Reset ends the request before the response: RST_STREAM with INTERNAL_ERROR on HTTP/2, a TCP
	// reset on HTTP/1.1.
	Reset Kind = "reset"
	// ResetBody is Reset after the headers and Size bytes (0: 1,000) of a longer body.
	ResetBody Kind = "reset-body"
	// ResetConn ends the whole connection with a TCP reset before the response, on both protocols.
	ResetConn Kind = "reset-conn"
	// Status answers with Code (0: 500) and a Status object, and keeps the connection open.
	Status Kind = "status"
	// Redirect answers with 307 and the Location in Text.
	Redirect Kind = "redirect"
	// NoAggregated answers requests for aggregated discovery with Code (0: 404).
	NoAggregated Kind = "no-aggregated"
	// HugeBody sends a JSON string of Size bytes (0: 1 GiB), unless the client ends it.
	HugeBody Kind = "huge-body"
	// Garbage answers 200 with bytes that are not what Content-Type says.
	Garbage Kind = "garbage"
	// EndlessHeaders sends header lines (HTTP/1.1) or CONTINUATION frames (HTTP/2) until Size bytes
	// (0: 64 MiB), unless the client ends it.
	EndlessHeaders Kind = "endless-headers"
	// EndlessTrailers is EndlessHeaders after a complete body.
	EndlessTrailers Kind = "endless-trailers"
	// GzipBomb answers 200 with a JSON string of Size bytes (0: 256 MiB), compressed to a
	// thousandth whether or not that was asked for.
	GzipBomb Kind = "gzip-bomb"
	// InformationalFlood sends Size (0: 10,000) responses 103 before the real one.
	InformationalFlood Kind = "informational-flood"
	// ShortBody promises Size bytes (0: 1,000) in Content-Length and ends after half of them.
	ShortBody Kind = "short-body"
	// LongBody promises half of the Size bytes (0: 1,000) that it sends.
	LongBody Kind = "long-body"
	// GoAway says that the connection ends with this request (GOAWAY, or Connection: close) and
	// answers it.
	GoAway Kind = "goaway"
	// GoAwayUnprocessed sends GOAWAY with a last stream before this one and does not answer; a TCP
	// reset on HTTP/1.1.
	GoAwayUnprocessed Kind = "goaway-unprocessed"
	// BodyAfterReset sends RST_STREAM and then DATA for the same stream; on HTTP/1.1 a second
	// response that nobody asked for.
	BodyAfterReset Kind = "body-after-reset"
	// Unasked101 answers 101 to a request that did not ask for an upgrade, or to another protocol
	// than it asked for.
	Unasked101 Kind = "unasked-101"
)

// Fault is one way to misbehave, and when. The first fault of a list that fits a request is applied
// to it.
type Fault struct {
	// Kind is what goes wrong.
	Kind Kind
	// Path is a prefix of the request targets it applies to, as on the wire. Empty: all.
	Path string
	// Method is the method it applies to. Empty: all.
	Method string
	// Every applies it to every n-th fitting request only. 0 and 1: to each.
	Every int
	// Delay, Code, Size and Text are explained at the kinds that use them.
	Delay time.Duration
	Code  int
	Size  int64
	Text  string
}

func (k Kind) ofConnections() bool {
	switch k {
	case Refuse, Dead, HangConnect, Freeze, WrongCA, WrongName, NoNames, Expired, NotYetValid, SHA1, HTTP1Only, HTTP2Only:
		return true
	}
	return false
}

// faults is the set that is switched on.
type faults struct {
	mu      sync.Mutex // guards what follows
	set     []Fault
	seen    []int         // :: index in set → requests that fitted it
	conn    map[Kind]bool // the kinds of connections in set
	change  chan struct{} // closed when set changes; nil until somebody waits
	rotated *tls.Certificate
}

// Set replaces all faults; without arguments everything is well again. When it returns, the port is
// as the faults want it.
func (s *Server) Set(list ...Fault) error {
	s.faults.replace(list)
	switch {
	case s.faults.connects(Dead):
		s.listen.refuse(true)
	case s.faults.connects(Refuse):
		s.listen.refuse(false)
	default:
		return s.listen.open()
	}
	return nil
}

func (f *faults) replace(list []Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set, f.seen, f.conn = list, make([]int, len(list)), map[Kind]bool{}
	for _, fault := range list {
		f.conn[fault.Kind] = fault.Kind.ofConnections()
	}
	if f.change != nil {
		close(f.change)
		f.change = nil
	}
}

// changed is closed at the next Set.
func (f *faults) changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.change == nil {
		f.change = make(chan struct{})
	}
	return f.change
}

func (f *faults) connects(k Kind) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conn[k]
}

func (f *faults) rotatedPair() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rotated
}

// of finds the fault for a request. aggregated says whether aggregated discovery was asked for.
func (f *faults) of(method, target string, aggregated bool) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, x := range f.set {
		if x.Kind.ofConnections() || !strings.HasPrefix(target, x.Path) || x.Method != "" && x.Method != method || x.Kind == NoAggregated && !aggregated {
			continue
		}
		if f.seen[i]++; f.seen[i]%max(x.Every, 1) == 0 {
			return x, true
		}
	}
	return Fault{}, false
}
