// Package console is the part of the fairlead command that talks to a running Fairlead: status and explain. It asks the status document and the explanation through
// the front door, with kubectl's own flags and kubeconfig, so it needs no more access than kubectl has, and shows what the server says: it finds out nothing by itself
// but which path a resource name means, and whether a CustomResourceDefinition claims it too.
//
// Each command is used by one goroutine.
package console
