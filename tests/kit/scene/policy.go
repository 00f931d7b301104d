package scene

import (
	"slices"
	"testing"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/directory"
)

// SetPolicy sets the policy of a file with this text.
func SetPolicy(tb testing.TB, in *registry.Input, file, text string) {
	tb.Helper()
	objects, faults := directory.Decode(file, []byte(text))
	wrong, unknown := in.SetPolicy(objects)
	for _, f := range slices.Concat(faults, wrong, unknown) {
		tb.Fatal(f)
	}
}
