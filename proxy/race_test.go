//go:build race

package proxy

// maxDecided is wider under the race detector, which has sync.Pool forget every fourth thing: the
// regexp that checks each key of a long selector then allocates its state again, 9 MiB for the
// longest that the loop decides.
const maxDecided = 16 << 20
