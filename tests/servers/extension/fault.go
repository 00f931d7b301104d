package extension

import (
	"crypto/tls"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is a way to misbehave.
type Kind string

// The kinds. Those of the first group concern connections: Path, Method and Every do not apply. The
// others concern requests.
const (
	Refuse      Kind = "refuse"       // closes the port: new connections are refused, open ones stay
	Dead        Kind = "dead"         // closes the port and resets every open connection, like the death of the process
	HangConnect Kind = "hang-connect" // accepts new connections and sends nothing on them, not even TLS
	// Freeze stops reading and writing on all connections, including pings, as if the network dropped every packet.
	Freeze      Kind = "freeze"
	WrongCA     Kind = "wrong-ca"      // serves a certificate of another CA with the same name
	WrongName   Kind = "wrong-name"    // serves a certificate for another host
	NoNames     Kind = "no-names"      // serves a certificate with only a common name
	Expired     Kind = "expired"       // serves a certificate that expired a minute ago
	NotYetValid Kind = "not-yet-valid" // serves a certificate that will be valid in an hour
	SHA1        Kind = "sha1"          // serves a certificate signed with SHA-1
	HTTP1Only   Kind = "http1-only"    // removes HTTP/2 from ALPN
	HTTP2Only   Kind = "http2-only"    // removes HTTP/1.1 from ALPN

	Hang     Kind = "hang"      // never answers
	HangBody Kind = "hang-body" // answers with status and headers, but never with a body
	Slow     Kind = "slow"      // waits Delay before it handles the request
	SlowBody Kind = "slow-body" // sends Size bytes (0: 1,000) in ten pieces, Delay apart
	// Reset ends the request before the response: RST_STREAM with INTERNAL_ERROR on HTTP/2, a TCP reset on HTTP/1.1.
	Reset     Kind = "reset"
	ResetBody Kind = "reset-body" // Reset after the headers and the first Size bytes (0: 1,000) of a longer body
	ResetConn Kind = "reset-conn" // ends the whole connection with a TCP reset before the response, on both protocols
	Status    Kind = "status"     // answers with Code (0: 500) and a Status object, and keeps the connection open
	Redirect  Kind = "redirect"   // answers with 307 and another server's Location
	HugeBody  Kind = "huge-body"  // sends a JSON string of Size bytes (0: 1 GiB), or until the client stops it
	Garbage   Kind = "garbage"    // answers 200 with bytes that do not match the Content-Type
	// EndlessHeaders sends header lines (HTTP/1.1) or CONTINUATION frames (HTTP/2) of Size bytes
	// (0: 64 MiB), or until the client stops it.
	EndlessHeaders     Kind = "endless-headers"
	InformationalFlood Kind = "informational-flood" // sends Size (0: 10,000) 103 responses before the final one
	// ShortBody has a Content-Length of Size (0: 1,000) and ends after half of that.
	ShortBody Kind = "short-body"
	// LongBody has a Content-Length of half of the Size bytes (0: 1,000) that it sends.
	LongBody Kind = "long-body"
	// GoAway announces the end of the connection (GOAWAY, or Connection: close) and answers the request.
	GoAway Kind = "goaway"
	// GoAwayUnprocessed sends GOAWAY with a last stream before this one and does not answer; on
	// HTTP/1.1 it sends a TCP reset.
	GoAwayUnprocessed Kind = "goaway-unprocessed"
	// BodyAfterReset sends RST_STREAM and then DATA for the same stream; on HTTP/1.1 it sends a
	// second response, which was not requested.
	BodyAfterReset Kind = "body-after-reset"
	Unasked101     Kind = "unasked-101" // answers 101 to a request without an upgrade
)

// Fault is a way to misbehave, and when. The first fault of a list that matches a request applies to it.
type Fault struct {
	Kind   Kind   // the way
	Path   string // a prefix of matching request targets, as on the wire. Empty: all.
	Method string // the matching method. Empty: all.
	Every  int    // applies the fault only to every n-th matching request. 0 and 1: to each
	// Delay, Code and Size are described at the kinds that use them.
	Delay time.Duration
	Code  int
	Size  int64
}

func (k Kind) ofConnections() bool {
	switch k {
	case Refuse, Dead, HangConnect, Freeze, WrongCA, WrongName, NoNames, Expired, NotYetValid, SHA1, HTTP1Only, HTTP2Only:
		return true
	}
	return false
}

// faults holds the active faults.
type faults struct {
	mu           sync.Mutex // guards the fields below
	set          []Fault
	seen         []int         // :: index in set → matching requests so far
	change       chan struct{} // closed when set changes
	certificates map[Kind]tls.Certificate
}

// Set replaces all faults; without arguments, nothing is faulty any longer. When it returns, the
// port is open or closed as the faults require.
func (s *Server) Set(list ...Fault) error {
	s.faults.mu.Lock()
	s.faults.set, s.faults.seen = list, make([]int, len(list))
	close(s.faults.change)
	s.faults.change = make(chan struct{})
	s.faults.mu.Unlock()
	dead, _ := s.faults.connects(Dead)
	refuses, _ := s.faults.connects(Refuse)
	if dead || refuses {
		s.listen.refuse(dead)
		return nil
	}
	return s.listen.open()
}

// connects reports whether a fault of connections is active. The channel is closed by the next Set.
func (f *faults) connects(k Kind) (bool, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.set, func(x Fault) bool { return x.Kind == k }), f.change
}

// certificate returns the serving certificate of new connections.
func (f *faults) certificate() tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.set {
		if bad, ok := f.certificates[x.Kind]; ok {
			return bad
		}
	}
	return f.certificates[""]
}

// of returns the fault for a request.
func (f *faults) of(method, target string) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, x := range f.set {
		if x.Kind.ofConnections() || !strings.HasPrefix(target, x.Path) || x.Method != "" && x.Method != method {
			continue
		}
		if f.seen[i]++; f.seen[i]%max(x.Every, 1) == 0 {
			return x
		}
	}
	return Fault{}
}
