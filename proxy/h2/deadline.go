package h2

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// deadlines are what a handler has set through http.ResponseController. As with net/http's HTTP/2, a read deadline that has passed
// ends the body for good, and a write deadline that has passed resets the stream.
type deadlines struct {
	timer [2]*time.Timer // nil: not set
	late  [2]bool        // it has passed
	over  bool           // the handler has returned: no further timer starts
}

// way is what a deadline is for.
type way uint8

const (
	reading way = iota
	writing
)

// SetReadDeadline is for http.ResponseController.
func (w *writer) SetReadDeadline(t time.Time) error { return w.l.setDeadline(reading, t) }

// SetWriteDeadline is for http.ResponseController.
func (w *writer) SetWriteDeadline(t time.Time) error { return w.l.setDeadline(writing, t) }

// setDeadline starts or stops (zero t) the timer of one way. The timer's own goroutine ends at once: it takes the mutex and
// marks the way.
func (l *local) setDeadline(d way, t time.Time) error {
	l.sh.lock()
	defer l.leave()
	x := &l.deadlines
	if x.over {
		return errStreamGone
	}
	if old := x.timer[d]; old != nil {
		old.Stop()
		x.timer[d] = nil
	}
	switch {
	case t.IsZero():
	case !t.After(time.Now()):
		l.expire(d)
	default:
		var timer *time.Timer
		timer = time.AfterFunc(time.Until(t), func() {
			l.sh.lock()
			defer l.leave()
			if x.timer[d] == timer { // not one that was replaced while it waited for the mutex
				l.expire(d)
			}
		})
		x.timer[d] = timer
	}
	return nil
}

// expire marks a way late. The shard's mutex is held.
func (l *local) expire(d way) {
	l.deadlines.late[d] = true
	l.Changed.Broadcast()
	if d == writing {
		l.Abort(errWriteDeadline)
	}
}

var errWriteDeadline = errors.New("handler's write deadline has passed")

// gone is why the handler cannot go on.
func (l *local) gone(d way) error {
	if l.deadlines.late[d] {
		return fmt.Errorf("http2: %w", os.ErrDeadlineExceeded)
	}
	return errStreamGone
}

// stopDeadlines stops the timers when the handler has returned.
func (l *local) stopDeadlines() {
	l.sh.lock()
	x := &l.deadlines
	x.over = true
	for d, timer := range x.timer {
		if timer != nil {
			timer.Stop()
			x.timer[d] = nil
		}
	}
	l.sh.settle()
}
