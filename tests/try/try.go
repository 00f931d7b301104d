// Package try ends what a program does when a step fails, in one line. A test has package must.
package try

import "errors"

// failure is what Do panics with, so that Catch tells it from a programmer's error.
type failure struct{ err error }

// Do goes no further on an error. What is deferred is still done; Catch says how far it goes.
func Do(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Get takes the results of a call and returns the value: b := try.Get(os.ReadFile(name)).
func Get[T any](v T, err error) T {
	Do(err)
	return v
}

// Catch is to be deferred: it makes what Do or Get has met the function's error. They must not be
// called on a goroutine that has no Catch.
func Catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = errors.Join(p.err, *err)
	default:
		panic(p)
	}
}
