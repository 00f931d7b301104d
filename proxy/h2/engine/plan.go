package engine

import (
	"net/http"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Plan says what becomes of a stream.
type Plan struct {
	Forward *Upstream    // the backend to forward to; nil: Answer or Serve
	Answer  *Answer      // answers the request; nil: Serve does
	Serve   http.Handler // answers the request on its own goroutine; nil with Forward and Answer nil: 500

	Remove func(name string) bool // client's fields and trailers that are not forwarded; nil: none beyond the connection-specific
	// Set are fields that are set, replacing the client's; with Answer they are added to it. They are copied before Decide is called for the same connection again; in a plan that is
	// given to resume they must not change any more.
	Set []hpack.HeaderField
	// RemoveResponse names fields and trailers of the backend's response that are not forwarded; nil: none beyond the connection-specific.
	RemoveResponse func(name string) bool
	Path           string // :path as forwarded, with the query; "": as received
	Authority      string // :authority as forwarded; "": the name of the endpoint

	Deadline    time.Duration // the whole request must end within it; 0: no bound
	LongRunning bool          // a watch, log or the like: no retry once sent, and drain grants it the grace
	GoAway      bool          // tell the client to open a new connection after this request (--goaway-chance)
	Unwelcome   bool          // charge the connection for it, as for one that is answered here with 401: 100 at once, 20 a second, then the client has to go

	Retries int         // further tries that are allowed, at most 2 are used; 0 or less: none
	Again   bool        // the request may be sent again although a backend may have seen it (GET and HEAD, not watch)
	Budget  func() bool // asked before each retry but those after a failed dial; nil: always
	// Wait is for how long the request waits for an endpoint that can be dialled, when none of those it may try can; 0: not at all.
	Wait time.Duration

	// Accept is asked for every final response head before it is forwarded: nil forwards it, a handler answers in its place
	// (a redirect that must not reach the client). nil: all are forwarded.
	Accept func(status int) http.Handler
	// Fail returns what answers a request that could not be forwarded, told by Outcome.Reason; nil: an empty 502, 503 or 504.
	// The handler sees the request's head as it was to be forwarded.
	Fail func(o Outcome) http.Handler
	// Done is called exactly once, when the stream has ended. It must not block. nil: nobody asks.
	Done func(o Outcome)
}

// Answer is a whole response that was made beforehand. Nothing of it may change: it is sent from where it is, as fast as the client takes it. It is not for
// HEAD, and not for more content than its Content-Length says.
type Answer struct {
	Status int                 // a final one
	Fields []hpack.HeaderField // :status, then the head; the date is added
	Body   []byte              // empty: none
}

// Reason says why a stream ended other than by a complete response.
type Reason string

// The reasons. The first five and the last end in an answer by Plan.Fail, unless the response had begun.
const (
	ReasonNone        Reason = ""             // complete
	ReasonNoEndpoint  Reason = "no-endpoint"  // Upstream.Pick returned nil
	ReasonDial        Reason = "dial"         // no connection to an endpoint
	ReasonLost        Reason = "lost"         // the backend's connection broke or fell silent
	ReasonReset       Reason = "reset"        // the backend reset the stream
	ReasonRefused     Reason = "refused"      // the backend refused the stream unprocessed (REFUSED_STREAM, or GOAWAY)
	ReasonBusy        Reason = "busy"         // no connection had room for another stream in time
	ReasonBadResponse Reason = "bad-response" // the backend broke the protocol
	ReasonTooLarge    Reason = "too-large"    // the head is larger than the backend accepts
	ReasonRejected    Reason = "rejected"     // Plan.Accept answered instead
	ReasonDeadline    Reason = "deadline"     // Plan.Deadline passed
	ReasonClientReset Reason = "client-reset" // the client reset the stream or broke the protocol on it
	ReasonClientLost  Reason = "client-lost"  // the client's connection is gone
	ReasonDrain       Reason = "drain"        // this process is going away
	ReasonAbort       Reason = "abort"        // the handler panicked
	ReasonRetired     Reason = "retired"      // the endpoint was retired and its grace is over
	ReasonEjected     Reason = "ejected"      // of a try alone: the endpoint was found unhealthy
)

// Outcome is how a stream ended.
type Outcome struct {
	Status   int           // of the final response head sent to the client; 0: none was
	Reason   Reason        // ReasonNone: the response is complete
	Err      error         // what Reason names in more detail; may be nil
	Endpoint *Endpoint     // the last one tried; nil: none was
	Retries  int           // tries beyond the first
	Received int64         // body bytes from the client
	Sent     int64         // body bytes to the client
	Duration time.Duration // from the head's arrival to the end
	Wait     time.Duration // from the head's arrival to the final response head; 0: there was none
	Answer   time.Duration // from the moment the head was sent to Endpoint to its final response head; 0: it has sent none
}

// Upstream is a backend as the engine sees it: a choice of endpoints. It is shared by all requests to the backend.
type Upstream struct {
	// Pick chooses an endpoint for one request, other than those it tried before if there is a choice, and counts the request
	// as in flight there; nil: there is none. It must not block.
	Pick func(tried []*Endpoint) *Endpoint
	// Retried hears of each further try, and how the one before has failed. It must not block. nil: nobody listens.
	Retried func(after Reason)
}

// Endpoint is one address of a backend. Connections are pooled by its identity: who hands it out keeps returning the same pointer
// while address and trust are the same, and calls Server.Retire when they end.
type Endpoint struct {
	Name string // for Outcome and logs
	// Via is the endpoint whose connections carry the requests, with those of others; of this one only Name, Value, Release and Failed count then. Nil: it has
	// connections of its own.
	Via *Endpoint
	// Value is free for who made it.
	Value any

	// Release takes back what Pick counted, once per Pick. It must not block. nil: nobody counts.
	Release func()
	// Failed hears of a failed dial, handshake or ping, or a broken connection: a hint, not a verdict. It must not block. nil: nobody listens.
	Failed func(err error)

	// Lost is as Failed, at once and under a lock: who picks next should know. nil: nobody listens.
	Lost func()

	MaxConns    int           // connections per shard; 0: 1024, which at 250 streams each is far beyond the limits in front of it
	PingTimeout time.Duration // silence after which a connection is closed, a PING being sent after a fifth of it; 0: 5 s
}
