package h2

import (
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// The words of plans are the engine's, and explained there.
type (
	Head     = wire.Head
	Plan     = engine.Plan
	Answer   = engine.Answer
	Upstream = engine.Upstream
	Endpoint = engine.Endpoint
	Outcome  = engine.Outcome
	Reason   = engine.Reason
	Failure  = engine.Failure
)

// The reasons, too.
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
