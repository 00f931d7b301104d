// Package bound is about limits that many callers share: so many places, of which no caller may take all.
//
// The one rule: no source holds more than a quarter of a bound. Where one user's ordinary work may need more (Places.Lend), it gets
// more as long as some places stay free for others.
//
// Everything here may be called by any goroutine. A mutex is held for a look-up in a map, and never over a wait.
package bound
