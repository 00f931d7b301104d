//go:build e2e

package behind

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
)

func (w *world) autoscale(t *testing.T) {
	t.Helper()
	w.apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: scaled}}\n---"+manifests.Autoscaled("scaled"))
}
