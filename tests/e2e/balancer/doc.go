// Package balancer has HAProxy in front of Fairlead, which speaks the PROXY protocol: `make balancer`.
//
// The build tag is e2e. It needs haproxy.
package balancer
