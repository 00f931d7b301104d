// Package interop holds the tests with servers that are not written in Go: nginx and Node, as
// extension servers behind a Fairlead with a folder of manifests.
//
// They need the build tag e2e, and the programs.
package interop
