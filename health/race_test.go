//go:build race

package health

import "runtime"

// In a bubble of synctest, timers that two Ps run at once break the race detector, which ends the
// process (golang/go#78156): of these tests' runs, one in ten. On one P it finds the same races,
// because it compares what happens before, not when.
var _ = runtime.GOMAXPROCS(1)
