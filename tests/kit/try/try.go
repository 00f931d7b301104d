// Package try ends what a program does when a step fails, in one line. Tests use package must.
package try

import "errors"

// failure is the panic value of Do, by which Catch recognizes it.
type failure struct{ err error }

// Do stops on an error: deferred calls run, up to the function that has deferred Catch.
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

// Catch must be deferred. It makes the error of Do or Get the function's error. They must not be
// called on a goroutine without a Catch.
func Catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = errors.Join(p.err, *err)
	default:
		panic(p)
	}
}
