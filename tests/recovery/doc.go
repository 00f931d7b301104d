// Package recovery ends real extension servers and starts them again, and measures how much later
// Fairlead serves them than they would answer directly: `make recovery`. It needs root, for a
// network namespace of its own.
package recovery
