// Package streams sends many more concurrent requests than backends allow HTTP/2 streams, in turns through Fairlead and
// through kube-apiserver's own aggregator: `make streams`. It needs h2load, and root for a network namespace.
package streams
