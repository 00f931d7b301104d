//go:build race

package h2

// slower is how much less is done under the race detector, which makes moving bytes some ten times
// slower.
const slower = 8
