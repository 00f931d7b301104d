package hold

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestMetrics(t *testing.T) {
	b := New(1 << 30)
	b.Add(7)
	b.Refuse(Stream)
	must.Do(t, testutil.CollectAndCompare(b, strings.NewReader(`
# HELP fairlead_memory_held_bytes Bytes held for connections: input, output and bodies that wait.
# TYPE fairlead_memory_held_bytes gauge
fairlead_memory_held_bytes 7
# HELP fairlead_memory_limit_bytes Limit of fairlead_memory_held_bytes: a quarter of the memory limit.
# TYPE fairlead_memory_limit_bytes gauge
fairlead_memory_limit_bytes 1.073741824e+09
# HELP fairlead_memory_refused_total Refusals because too much memory is held: stream (a request on a connection that holds much), connection (the largest was closed), body (not kept for a retry).
# TYPE fairlead_memory_refused_total counter
fairlead_memory_refused_total{what="stream"} 1
fairlead_memory_refused_total{what="connection"} 0
fairlead_memory_refused_total{what="body"} 0
`)))
}
