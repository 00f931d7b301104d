// Package routes puts several real metrics servers behind one APIService by a policy's routes: `make routes`.
//
// The build tag is e2e. It needs root, Linux, iproute2 and prometheus.
package routes
