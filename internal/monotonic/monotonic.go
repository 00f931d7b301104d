// Package monotonic has moments for atomic variables. A step of the wall clock changes no time between two of them, as
// with a [time.Time] that has kept its monotonic reading.
package monotonic

import "time"

// origin is when this process began.
var origin = time.Now() //nolint:gochecknoglobals // nothing writes it

// Now returns the moment now, in nanoseconds.
func Now() int64 { return At(time.Now()) }

// At returns the moment of a time of this process: its Unix time, by a wall clock that nobody has set since origin. So
// no moment is zero, which may mean none.
func At(t time.Time) int64 {
	return origin.UnixNano() + int64(t.Sub(origin)) //nolint:forbidigo // once, and always the same
}

// Since returns the time since a moment.
func Since(moment int64) time.Duration { return time.Duration(Now() - moment) }
