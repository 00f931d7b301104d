//go:build race

package check

import "testing"

// Allocations returns how often f allocates at least: under the race detector sync.Pool drops every
// fourth item, so an average says nothing.
func Allocations(f func()) float64 {
	least := testing.AllocsPerRun(1, f)
	for range 20 {
		least = min(least, testing.AllocsPerRun(1, f))
	}
	return least
}
