// Package streams loads backends that allow few HTTP/2 streams a connection with far more requests
// at once, through Fairlead and through kube-apiserver's own aggregator in turns: `make streams`.
// It needs root, for a network namespace of its own, and h2load.
package streams
