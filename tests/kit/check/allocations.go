//go:build !race

package check

import "testing"

// Allocations returns how often f allocates, on average.
func Allocations(f func()) float64 { return testing.AllocsPerRun(1000, f) }
