// Package rules checks rules for the whole repository, such as the size of files, functions and
// packages, and which imports are allowed. They are ordinary tests: they need only Go.
package rules
