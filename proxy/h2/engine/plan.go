package engine

import (
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Plan says how a stream is answered. In package proxy exchange.plan makes it, and who calls that sets Done.
type Plan struct {
	Forward *Upstream // the backend to forward to; nil means Answer or Serve
	Client  any       // whose request it is, for Upstream.Pick; may be nil
	Answer  *Answer   // answers the request; nil means Serve
	// Serve answers the request on its own goroutine; without Forward and Answer either, the answer is 500.
	Serve http.Handler

	Remove func(name string) bool // client's fields to drop; nil means only connection-specific ones
	// Set adds fields, also to Answer. Remove must report the client's of the same names. The engine copies the fields
	// before it calls Decide for the same connection again; those of a plan for resume must not change any more.
	Set            []hpack.HeaderField
	RemoveResponse func(name string) bool // the response's fields and trailers to drop, like Remove
	Authority      string                 // :authority to forward; "" means the endpoint's Host

	Deadline    time.Duration // for the whole request, see stream.expired; 0 means none
	LongRunning bool          // a watch, log or the like: not retried once sent; if forwarded, drain gives it the grace
	// Apart sends the request over connections that carry only such requests: for an answer that a
	// backend takes from somebody else, who may break the protocol and so end the connection.
	Apart bool
	// Owner is the user whose request it is. What a user sends that may end a connection is sent
	// over connections of that user alone. Empty means that the user is not known.
	Owner string
	// Finite says that a long-running response has an end of its own, unlike a watch. It is reset
	// where a watch is ended, because its client could not tell a part of it from the whole.
	Finite bool
	// Resumes says that a watch goes on elsewhere after its end. So the loss of its backend ends it as a drain does: as
	// when its own connection breaks, client-go then resumes it, but after a reset of the stream it lists all anew.
	Resumes   bool
	GoAway    bool // send GOAWAY with the answer's end (--goaway-chance), or at once if it is long-running
	Unwelcome bool // charge the connection as for an own 401: 90 requests at once, 20 a second, and then GOAWAY

	Retries int         // further tries; at most 2 are used, 0 or less means none
	Again   bool        // may be retried even if a backend may have processed it (GET and HEAD, not watch)
	Stays   bool        // after a reset or orderly GOAWAY it is retried at the same endpoint: others have other states
	Budget  func() bool // is called before each retry except after a failed dial; nil means always true
	// Wait is how long the request waits for an endpoint that can be dialled, if none can be; zero means not at all.
	Wait time.Duration

	// Accept is called with the status of every final response head before it is forwarded, and whether it has a
	// Location. A handler answers instead (of a redirect). If Accept or its result is nil, the head is forwarded.
	Accept func(status int, leads bool) http.Handler
	// Fail returns the answer to a request that could not be forwarded, see Outcome.Reason. With Forward
	// only a guest may be without it. The handler gets the head that was to be forwarded.
	Fail func(o Outcome) http.Handler
	Done func(o Outcome) // called exactly once, at the stream's end. It must not block. Nil means no callback
}

// Answer is a prepared response. It is immutable, because it is sent without a copy, as fast as the
// client accepts it. It must not be used for HEAD, nor be longer than its Content-Length.
type Answer struct {
	Status int                 // a final one
	Fields []hpack.HeaderField // :status, then the head; Date is added
	Body   []byte              // may be empty
}

// Reason says why a stream ended without a complete response.
type Reason string

// Plan.Fail answers from ReasonNoEndpoint to ReasonTooLarge, for ReasonDeadline and ended watches, if no head had come.
const (
	ReasonNone        Reason = ""             // complete
	ReasonNoEndpoint  Reason = "no-endpoint"  // Upstream.Pick returned nil
	ReasonDial        Reason = "dial"         // no connection to an endpoint
	ReasonLost        Reason = "lost"         // the backend's connection broke or fell silent
	ReasonReset       Reason = "reset"        // the backend reset the stream
	ReasonRefused     Reason = "refused"      // the backend did not process the stream (REFUSED_STREAM or GOAWAY)
	ReasonBusy        Reason = "busy"         // no connection had room for another stream in time
	ReasonBadResponse Reason = "bad-response" // the backend broke the protocol
	ReasonBlamed      Reason = "blamed"       // the backend ended its connection for an error at this request's head
	ReasonTooLarge    Reason = "too-large"    // the head is larger than the backend accepts
	ReasonRejected    Reason = "rejected"     // Plan.Accept answered instead
	ReasonDeadline    Reason = "deadline"     // Plan.Deadline passed
	ReasonClientReset Reason = "client-reset" // the client reset the stream or broke the protocol on it
	ReasonClientLost  Reason = "client-lost"  // the client's connection has ended
	ReasonMemory      Reason = "memory"       // too much memory was held, the most by its connection
	ReasonDrain       Reason = "drain"        // this process is shutting down
	ReasonAbort       Reason = "abort"        // a handler panicked, or the engine
	ReasonRetired     Reason = "retired"      // the endpoint was retired and its grace is over
	ReasonEjected     Reason = "ejected"      // only passed to Retried: the endpoint was found unhealthy
)

// Outcome is how a stream ended.
type Outcome struct {
	Status   int           // of the final response head sent to the client; 0 means none was
	Reason   Reason        // ReasonNone: the response is complete
	Err      error         // details of Reason; may be nil
	Endpoint *Endpoint     // the last one tried; nil means none
	Retries  int           // tries beyond the first
	Received int64         // body bytes from the client
	Sent     int64         // body bytes to the client
	Duration time.Duration // from the head's arrival to the end
	Wait     time.Duration // from the head's arrival to the final response head; 0 means there was none
	Placed   time.Duration // from the head's arrival until it was last sent to Endpoint; 0 means at once or never
	New      bool          // sent over a connection that had answered nothing yet
	// Answer is the time from the end of the request to the final response head of Endpoint, on which a slow upload has
	// no effect. Zero means that there was no such head, or that it came before the end of the request.
	Answer time.Duration
}

// Upstream chooses the endpoints of a backend, for all of its requests: for Fairlead a proxy/backend.Upstream, by pick.
type Upstream struct {
	// Pick chooses an endpoint for one request of a Plan.Client, if possible one that is not in tried, and counts the
	// request as in flight there. Nil means that there is none. Pick must not block.
	Pick    func(client any, tried []*Endpoint) *Endpoint
	Retried func(after Reason) // called before each further try, with why the previous one failed. It must not block
}

// Endpoint is one address of a backend. The pointer identifies its connection pool: an Upstream returns the same
// pointer while address and trust stay the same, and Server.Retire is called when they change.
type Endpoint struct {
	Name string // for Outcome and logs
	Host string // the :authority of requests without one; "" means the Name
	// Via is the endpoint whose connections carry the requests, together with those of others. With Via, only Name,
	// Host, Value, Release and Failed of this endpoint count. Nil means its own connections.
	Via *Endpoint
	// Value is free for the endpoint's owner. Endpoints with equal Values, other than nil, are the
	// same for Eject: it also concerns requests that were sent before the endpoint was retired.
	Value any

	Release func()        // undoes Pick's count, once per Pick. It must not block
	Told    func(*GoAway) // reports a GOAWAY with an error code, the first one of a connection. It must not block
	// Failed reports a failed dial, handshake or ping, or a broken connection, idle if it carried nothing: a hint, not
	// a verdict. It is called at once, under the shard's mutex, so the next Pick knows. It must not block.
	Failed func(err error, idle bool)

	// PingTimeout is the silence after which a connection with a request that waits for its answer
	// is closed, with a PING at a fifth; 0 means 5 s.
	PingTimeout time.Duration

	offended   atomic.Int32 // connections that ended for our PINGs; from tooOften on none are sent
	offendedAt atomic.Int64 // when the last one did, on the engines' clocks, which began together
}
