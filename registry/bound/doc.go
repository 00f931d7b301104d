// Package bound implements limits that many callers share. No caller may use all of a limit.
//
// The rule: no source holds more than a quarter of a limit. With Places.Lend, a source may hold
// more as long as some places stay free for others.
//
// Everything here is safe for concurrent use. A mutex is held for a map look-up, never while
// waiting.
package bound
