package kubelet

import (
	"fmt"
	"net/http"
	"time"
)

// The constant usage of the node and each container: metrics-server reports 250m, 512Mi, 100m and
// 64Mi.
const (
	nodeCPU         = 0.25
	nodeMemory      = 512 << 20
	containerCPU    = 0.1
	containerMemory = 64 << 20
)

// serveMetrics serves what metrics-server scrapes (/metrics/resource).
func (k *Kubelet) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	// A second more than it has run: metrics-server ignores a counter of zero.
	fmt.Fprintf(w, "# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total %f %d\n", used(now, k.started, nodeCPU), now.UnixMilli())
	fmt.Fprintf(w, "# TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes %d %d\n", nodeMemory, now.UnixMilli())
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.containers {
		labels := fmt.Sprintf(`{container=%q,namespace=%q,pod=%q}`, containerName, c.namespace, c.pod)
		fmt.Fprintf(w, "container_cpu_usage_seconds_total%s %f %d\n", labels, used(now, c.started, containerCPU), now.UnixMilli())
		fmt.Fprintf(w, "container_memory_working_set_bytes%s %d %d\n", labels, containerMemory, now.UnixMilli())
		fmt.Fprintf(w, "container_start_time_seconds%s %f\n", labels, float64(c.started.UnixNano())/1e9)
	}
}

// used returns the CPU time after a constant use of cores.
func used(now, started time.Time, cores float64) float64 {
	return (now.Sub(started).Seconds() + 1) * cores
}
