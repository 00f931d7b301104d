//go:build !race

package proxy

// maxDecided limits the allocations for deciding one head, on the loop or at the desk: four times the longest head.
const maxDecided = 1 << 20
