package engine

// What is freed twice would be given to two connections, and one would read what is the other's. So
// everything that is kept for reuse is marked, and freeing it again is a panic, which ends the
// connection that it happens on.

// freed says that something is kept for reuse.
type freed bool

func (f *freed) free() {
	if *f {
		panic("freed twice")
	}
	*f = true
}

func (f *freed) use() { *f = false }
