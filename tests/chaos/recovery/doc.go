// Package recovery stops and restarts real extension servers, and measures how much later Fairlead
// serves them than they answer directly: `make recovery`. It needs root, for a network namespace.
package recovery
