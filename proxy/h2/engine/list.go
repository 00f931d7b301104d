package engine

// node is a stream's place in one list; it is unlinked when its list is nil.
type node struct {
	next, prev *node
	in         *list
	s          *stream
	d          dir // the direction that is ready, on a connection's ready list
}

// list is a doubly linked list through the streams themselves: it allocates nothing, and a stream
// that ends leaves all its lists.
type list struct {
	first, last *node
	n           int
}

func (l *list) push(n *node) {
	if n.in != nil {
		return
	}
	n.in, n.prev, n.next = l, l.last, nil
	if l.last == nil {
		l.first = n
	} else {
		l.last.next = n
	}
	l.last = n
	l.n++
}

func (n *node) unlink() {
	l := n.in
	if l == nil {
		return
	}
	if n.prev == nil {
		l.first = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.last = n.prev
	} else {
		n.next.prev = n.prev
	}
	l.n--
	n.next, n.prev, n.in = nil, nil, nil
}

func (l *list) pop() *stream {
	n := l.first
	if n == nil {
		return nil
	}
	n.unlink()
	return n.s
}
