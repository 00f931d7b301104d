package kubelet

import (
	"context"
	"io"
	"net/http"
	"strconv"
)

// maxLines limits a container's log: more than a test writes.
const maxLines = 200_000

// Log appends a line to the container's log, unless that is full.
func (c *Container) Log(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lines) == maxLines {
		return
	}
	c.lines = append(c.lines, what)
	close(c.grown)
	c.grown = make(chan struct{})
}

func (c *Container) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lines)
}

// after returns the lines from number n on, and a channel that is closed when lines are added.
func (c *Container) after(n int) ([]string, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines[min(n, len(c.lines)):], c.grown
}

// follow writes the lines from number n on. If goesOn, it also writes new lines until ctx or the
// kubelet ends.
func (c *Container) follow(ctx context.Context, w io.Writer, n int, goesOn bool) error {
	for {
		lines, grown := c.after(n)
		for _, l := range lines {
			if _, err := io.WriteString(w, l+"\n"); err != nil {
				return err
			}
		}
		if n += len(lines); !goesOn {
			return nil
		}
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil
		case <-c.ctx.Done():
			return nil
		}
	}
}

// serveLogs serves `kubectl logs`, with the options tailLines and follow.
func (k *Kubelet) serveLogs(w http.ResponseWriter, r *http.Request) {
	c := k.find(w, r)
	if c == nil {
		return
	}
	q, n := r.URL.Query(), 0
	if v := q.Get("tailLines"); v != "" {
		tail, err := strconv.Atoi(v)
		if err != nil || tail < 0 {
			http.Error(w, "tailLines is not a number", http.StatusBadRequest)
			return
		}
		n = max(0, c.count()-tail)
	}
	w.Header().Set("Content-Type", "text/plain")
	goesOn, _ := strconv.ParseBool(q.Get("follow"))
	_ = c.follow(r.Context(), w, n, goesOn)
}
