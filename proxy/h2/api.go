package h2

import (
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

type (
	// Head is the head of a client's request.
	Head = wire.Head
	// Plan says how a request is answered.
	Plan = engine.Plan
	// Answer is a prepared response.
	Answer = engine.Answer
	// Upstream chooses the endpoints of a backend.
	Upstream = engine.Upstream
	// Endpoint is one address of a backend.
	Endpoint = engine.Endpoint
	// GoAway is a backend's GOAWAY that has an error code.
	GoAway = engine.GoAway
	// Outcome is how a request has ended.
	Outcome = engine.Outcome
	// Reason says why a request ended without a complete response, see engine.ReasonNone.
	Reason = engine.Reason
	// Failure is the error of RoundTrip, and of reading its response's body.
	Failure = engine.Failure
)
