package proxy

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// sessions are the upgraded connections. net/http forgets a connection after Hijack, so a shutdown
// must end them here. Their number is bounded by the limits that each request passed.
type sessions struct {
	open atomic.Int64
	// ending is done when every session must end; end cancels it.
	ending context.Context
	end    context.CancelFunc
}

// Sessions returns the number of open upgraded sessions (exec, port-forward, consoles).
func (p *Proxy) Sessions() int { return int(p.sessions.open.Load()) }

// EndSessions ends all sessions, also those that begin later. It returns when they and all other
// requests of ServeHTTP are recorded, or when ctx ends. It is the last step of a drain.
func (p *Proxy) EndSessions(ctx context.Context) {
	p.sessions.end()
	const every = 20 * time.Millisecond // short compared with the end of a process
	recorded := func(context.Context) (bool, error) { return p.serving.Load() == 0, nil }
	_ = wait.PollUntilContextCancel(ctx, every, true, recorded)
}
