package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// killers returns all tests that kill the mutant. It runs them one at a time, since a panic or an
// expired limit ends a run.
func (w *workshop) killers(ctx context.Context, b *binary, number int) []string {
	var killers []string
	for _, test := range slices.Sorted(maps.Keys(b.reached)) {
		if slices.Contains(b.reached[test], number) && w.fail(ctx, b, number, []string{test}) != "" {
			killers = append(killers, test)
		}
	}
	return killers
}

// printSpare prints the tests that may go together: each mutant that they kill is killed by another
// test, too. The costly ones come first.
func printSpare(b *binary, killers []string) {
	left := map[string]int{} // :: killers of a mutant → how many of them stay
	for _, tests := range killers {
		left[tests] = len(strings.Fields(tests))
	}
	tests := slices.SortedFunc(maps.Keys(b.took), func(x, y string) int { return int(b.took[y] - b.took[x]) })
	for _, test := range tests {
		needed, kills := false, 0
		for _, tests := range killers {
			if slices.Contains(strings.Fields(tests), test) {
				needed = needed || left[tests] == 1
				kills++
			}
		}
		if needed {
			continue
		}
		for tests := range left {
			if slices.Contains(strings.Fields(tests), test) {
				left[tests]--
			}
		}
		fmt.Fprintf(os.Stdout, "%s: %s may go: others kill its %d mutants\n", b.dir, test, kills)
	}
}
