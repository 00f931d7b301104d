package engine

// chunkSize is a page less the chunk's own fields: small enough for one stuck event, large enough to copy at once.
const chunkSize = 4096 - 24

const maxFreeChunks = 256 // bounds a shard's free list: 1 MiB

type chunk struct {
	next  *chunk
	n     int
	freed freed
	b     [chunkSize]byte
}

// queue holds body bytes of one direction of a stream that could not be sent yet. While keep is
// set, bytes stay after they were read, so that rewind can send the body on another connection.
type queue struct {
	head, cur, tail *chunk // head: first kept; cur: first with unread bytes, nil when all are read
	off             int    // bytes of cur that were read
	size            int    // unread bytes
	kept            int    // bytes read and kept
	chunks          int32
	keep            bool
	lost            bool // bytes were read and not kept: the body cannot be sent again
	// whole is a prepared answer, sent without a copy, of whose body off bytes were read. Nil: they are in chunks.
	whole *Answer
}

// show makes an empty queue return the answer's body, which must not change.
func (q *queue) show(a *Answer) { q.whole, q.off, q.size = a, 0, len(a.Body) }

func (q *queue) push(e *Engine, p []byte) {
	q.size += len(p)
	for len(p) > 0 {
		if q.tail == nil || q.tail.n == chunkSize {
			c := e.chunk()
			q.chunks++
			if q.tail == nil {
				q.head = c
			} else {
				q.tail.next = c
			}
			q.tail = c
		}
		if q.cur == nil {
			q.cur, q.off = q.tail, q.tail.n
		}
		n := copy(q.tail.b[q.tail.n:], p)
		q.tail.n += n
		p = p[n:]
	}
}

// peek returns the next unread bytes, of one chunk.
func (q *queue) peek() []byte {
	switch {
	case q.whole != nil:
		return q.whole.Body[q.off:]
	case q.cur == nil:
		return nil
	}
	return q.cur.b[q.off:q.cur.n]
}

// read marks n bytes of what peek returned as read.
func (q *queue) read(e *Engine, n int) {
	q.size -= n
	q.off += n
	if q.whole != nil {
		return
	}
	if q.keep {
		q.kept += n
	} else {
		q.lost = true
	}
	if q.off < q.cur.n {
		return
	}
	q.cur, q.off = q.cur.next, 0
	if !q.keep {
		q.release(e)
	}
}

// release frees chunks without unread bytes.
func (q *queue) release(e *Engine) {
	for q.head != nil && q.head != q.cur {
		c := q.head
		q.head = c.next
		q.chunks--
		e.freeChunk(c)
	}
	if q.head == nil {
		q.tail = nil
	}
}

// forget drops the kept bytes: if any were sent, the body cannot be sent again.
func (q *queue) forget(e *Engine) {
	if !q.keep {
		return
	}
	q.keep = false
	q.lost = q.lost || q.kept > 0
	q.kept = 0
	q.release(e)
}

func (q *queue) rewind() {
	q.cur, q.off = q.head, 0
	q.size += q.kept
	q.kept = 0
}

func (q *queue) clear(e *Engine) {
	q.cur, q.off, q.size, q.kept, q.whole, q.keep = nil, 0, 0, 0, nil, false
	q.release(e)
}

func (e *Engine) chunk() *chunk {
	e.Count.Queued.Add(chunkSize)
	e.held += chunkSize
	c := reuse(&e.chunks)
	c.freed = false
	return c
}

func (e *Engine) freeChunk(c *chunk) {
	c.freed.free()
	e.Count.Queued.Add(-chunkSize)
	e.held -= chunkSize
	if len(e.chunks) < maxFreeChunks {
		c.next, c.n = nil, 0
		e.chunks = append(e.chunks, c)
	}
}

// reuse returns an object of a free list, or a new one.
func reuse[T any](list *[]*T) *T {
	last := len(*list) - 1
	if last < 0 {
		return new(T)
	}
	x := (*list)[last]
	*list = (*list)[:last]
	return x
}

// freed marks an object on a free list. Freeing it again panics, as in spare.Buffers, and closes the connection.
type freed bool

func (f *freed) free() {
	if *f {
		panic("freed twice")
	}
	*f = true
}
