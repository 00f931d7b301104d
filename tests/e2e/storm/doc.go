// Package storm measures what one caller that lists all pods every second does to others, and what
// stops it: `make storm`.
//
// The build tag is e2e. It needs an idle machine.
package storm
