// Package answer defines the JSON documents in which Fairlead describes itself. Package pages of
// cmd/fairlead makes them. kubectl-fairlead reads and shows them without linking the packages they
// are made from.
//
// A document must be used by one goroutine at a time.
package answer
