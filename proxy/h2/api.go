package h2

import (
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

type (
	// Head is what a client has asked for.
	Head = wire.Head
	// Plan is what becomes of a request.
	Plan = engine.Plan
	// Answer is one that is made here.
	Answer = engine.Answer
	// Upstream is where requests are forwarded to.
	Upstream = engine.Upstream
	// Endpoint is one server of an Upstream.
	Endpoint = engine.Endpoint
	// Outcome is how a request has ended.
	Outcome = engine.Outcome
	// Reason is why it was not answered by a backend, or not wholly.
	Reason = engine.Reason
	// Failure is that as an error.
	Failure = engine.Failure
)

// The reasons are the engine's.
const (
	ReasonNone        = engine.ReasonNone
	ReasonNoEndpoint  = engine.ReasonNoEndpoint
	ReasonDial        = engine.ReasonDial
	ReasonLost        = engine.ReasonLost
	ReasonReset       = engine.ReasonReset
	ReasonRefused     = engine.ReasonRefused
	ReasonBusy        = engine.ReasonBusy
	ReasonBadResponse = engine.ReasonBadResponse
	ReasonTooLarge    = engine.ReasonTooLarge
	ReasonRejected    = engine.ReasonRejected
	ReasonDeadline    = engine.ReasonDeadline
	ReasonClientReset = engine.ReasonClientReset
	ReasonClientLost  = engine.ReasonClientLost
	ReasonDrain       = engine.ReasonDrain
	ReasonAbort       = engine.ReasonAbort
	ReasonRetired     = engine.ReasonRetired
	ReasonEjected     = engine.ReasonEjected
)
