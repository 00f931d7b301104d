package engine

// Memory that is freed twice would be given to two connections, and one would read the other's
// data. So everything on a free list is marked, and freeing it again panics. The panic closes the
// connection on which it happens.

// freed marks an object that is on a free list.
type freed bool

func (f *freed) free() {
	if *f {
		panic("freed twice")
	}
	*f = true
}

func (f *freed) use() { *f = false }
