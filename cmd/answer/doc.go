// Package answer is what Fairlead says of itself, as documents of JSON: package pages of cmd/fairlead makes them, kubectl-fairlead reads and
// shows them, without linking what they are made from.
//
// A document belongs to whoever made or read it, and is used by one goroutine at a time.
package answer
