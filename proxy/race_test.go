//go:build race

package proxy

// maxDecided is larger under the race detector, where sync.Pool drops every fourth item: the regexp that checks each
// key of a long selector then allocates its state again, 9 MiB for the longest selector that the loop decides.
const maxDecided = 16 << 20
