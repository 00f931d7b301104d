// Package interop holds the tests with clients and servers that are not ours, and mostly not in Go:
// each does the same through Fairlead as directly.
//
// They need the build tag e2e, and the programs: make interop installs them.
package interop
