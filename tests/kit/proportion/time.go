//go:build !race

package proportion

// maxTime is how much more processor time the larger input may take. In proportion it is 4, and
// n log n is 5; the square is 16.
const maxTime = 6
