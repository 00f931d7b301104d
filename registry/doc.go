// Package registry holds the live, immutable table of APIServices. No other package reads
// APIServices.
//
// One writer (Registry.Run) builds an immutable *Table from the objects it watches and the reports
// of the prober, stores it in an atomic pointer, and then closes the superseded channel of the
// table it replaced. Every reader is the same small loop:
//
//	for t := range latest.Of(ctx, reg.Table, nil) {
//		apply(t)
//	}
//	return ctx.Err()
//
// Concurrency: everything reachable from a stored *Table is read-only. Any goroutine may read it
// without a lock, for any length of time. The writer does no I/O and holds no lock while it builds.
//
// This package does not dial and does not serve (registry/documents and registry/apiservices do).
// About a request it decides only which entry its path selects.
package registry
