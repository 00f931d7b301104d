//go:build race

package h2

// slower divides the amount of work under the race detector, which makes copying bytes some ten
// times slower.
const slower = 8
