//go:build !race

package proxy

// maxDecided bounds what deciding one head allocates, wherever it is decided: four times the
// longest head.
const maxDecided = 1 << 20
