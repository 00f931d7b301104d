// Package registry is the live, immutable table of APIServices: the only place that knows them.
//
// One writer (Registry.Run) builds an immutable *Table from the objects it watches and the verdicts reported to it, stores it in one
// atomic pointer and then closes the superseded channel of the table it replaced. Every consumer is the same small loop:
//
//	for t := range latest.Of(ctx, reg.Table, nil) {
//		apply(t)
//	}
//	return ctx.Err()
//
// The concurrency rule: everything reachable from a *Table is read-only from the moment it is stored; any goroutine may read it without a
// lock, for as long as it likes. The writer does no I/O and holds no lock while it builds.
//
// What this package is not: it dials nothing, serves nothing (registry/documents and registry/directory/apiservices do) and decides nothing about a
// request beyond the entry that its path selects.
package registry
