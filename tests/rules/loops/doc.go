// Package loops proves that nothing blocks, and nothing is expensive, while all clients of a shard
// wait for it: on a loop, and under each mutex that a loop takes, wherever it is taken. It follows
// all calls, also through func fields and interfaces (golang.org/x/tools/go/callgraph/vta), from
// where the mutexes are taken and from the loops' entry point. make verify runs it.
//
// It ends where the source says so: at a go statement, at a function marked //fairlead:expensive
// (which must not be called), and at a line with
//
//	//fairlead:boundary REASON
//
// or below such a line. A function is followed once for each set of mutexes that are held.
//
// Functions of other modules have no bodies here: outside.go says which of them may be called. What it does not see:
// methods of ours that other modules call by themselves (Error, String), and loops that run too long.
package loops
