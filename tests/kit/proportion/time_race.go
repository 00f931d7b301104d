//go:build race

package proportion

// maxTime is more than without the race detector, whose own memory for what is allocated comes from
// the kernel page by page: the largest inputs of 128 KiB took 5.2 to 8.3 times as long.
const maxTime = 10
