// Package tests holds the rules that the whole repository obeys: how large a file, a function or a
// package may grow, and who may import whom. They are tests, so they run with everything else and
// need no tool but Go.
package tests
