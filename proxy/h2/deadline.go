package h2

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// deadlines are a handler's deadlines, set through http.ResponseController. As in net/http's
// HTTP/2, a read deadline that has passed ends the body for good, and a passed write deadline
// resets the stream.
type deadlines struct {
	timer [2]*time.Timer // nil means not set
	late  [2]bool        // it has passed
	over  bool           // the handler has returned: no further timer starts
}

// way is the direction of a deadline.
type way uint8

const (
	reading way = iota
	writing
)

// SetReadDeadline implements http.ResponseController's method.
func (w *writer) SetReadDeadline(t time.Time) error { return w.l.setDeadline(reading, t) }

// SetWriteDeadline implements http.ResponseController's method.
func (w *writer) SetWriteDeadline(t time.Time) error { return w.l.setDeadline(writing, t) }

// setDeadline starts the timer of one direction, or stops it for a zero t. The timer's goroutine
// only takes the mutex and calls expire.
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
			if x.timer[d] == timer { // not replaced while it waited for the mutex
				l.expire(d)
			}
		})
		x.timer[d] = timer
	}
	return nil
}

// expire marks a direction late. The shard's mutex must be held.
func (l *local) expire(d way) {
	l.deadlines.late[d] = true
	l.Changed.Broadcast()
	if d == writing {
		l.Abort(errWriteDeadline)
	}
}

var errWriteDeadline = errors.New("handler's write deadline has passed")

// gone returns the error for a handler that cannot continue.
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
