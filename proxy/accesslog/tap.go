package accesslog

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/bound"
)

// Taps streams to operators the access-log lines of one user's requests, or of requests below a
// path, for at most a minute. It needs no log, and is not sampled. Zero is ready; nil has no taps.
type Taps struct {
	Draining func() bool // reports whether the process is about to end; taps end with it. It may be nil

	// open is replaced, never changed, so that requests read it without a lock. Nil: there was no tap yet.
	open atomic.Pointer[[]*tap]
	mu   sync.Mutex // guards replacing open
}

const (
	maxTapTime = time.Minute // ends a forgotten tap
	maxTapWord = 1 << 10     // limits the user and the path of a tap: none in Kubernetes is longer
	// maxTaps limits the open taps, of which one user leaves one to others. Each costs every
	// request two comparisons, and a line for each match.
	maxTaps = 4
	// tapTurn is how often a tap is written. In each turn it takes tapLines, 200 a second, more
	// than a human can read, and stops at tapBytes: a path can be long.
	tapTurn  = 250 * time.Millisecond
	tapLines = 50
	tapBytes = 64 << 10
)

type tap struct {
	by         bound.Source // who opened it
	user, path string

	mu    sync.Mutex // guards the fields below
	buf   []byte
	lines int // in buf
	over  int // lines that found no room
}

// Active reports whether there is a tap.
func (t *Taps) Active() bool { return t != nil && len(ptr.Deref(t.open.Load(), nil)) > 0 }

// Add adds a line to the taps that match it.
func (t *Taps) Add(line *Line) {
	for _, one := range ptr.Deref(t.open.Load(), nil) {
		whose := one.user == "" || one.user == line.User || one.user == line.Impersonator
		if whose && strings.HasPrefix(line.Path, one.path) {
			one.add(line)
		}
	}
}

func (t *tap) add(line *Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines >= tapLines || len(t.buf) >= tapBytes {
		t.over++
		return
	}
	t.lines++
	t.buf = line.append(t.buf)
}

// take returns the gathered lines and the number of lines left out. It swaps the buffer with into.
func (t *tap) take(into []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	into, t.buf = t.buf, into[:0]
	if t.over > 0 {
		into = append(strconv.AppendInt(append(into, `{"msg":"left out","lines":`...), int64(t.over), 10), "}\n"...)
	}
	t.lines, t.over = 0, 0
	return into
}

// replace opens or closes a tap. It reports false if there are too many.
func (t *Taps) replace(one *tap, open bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(ptr.Deref(t.open.Load(), nil)), func(o *tap) bool { return o == one })
	if open {
		others := slices.DeleteFunc(slices.Clone(list), func(o *tap) bool { return o.by == one.by })
		if len(list) == maxTaps || len(list)-len(others) == maxTaps-1 {
			return false
		}
		list = append(list, one)
	}
	t.open.Store(&list)
	return true
}

// ServeHTTP streams the lines of a user, of a path prefix, or of both, for the given seconds.
func (t *Taps) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	u, _ := request.UserFrom(r.Context())
	one := &tap{by: bound.Caller(u, r.RemoteAddr).AnyConn(), user: q.Get("user"), path: q.Get("path")}
	seconds, err := strconv.Atoi(cmp.Or(q.Get("seconds"), "60"))
	length := time.Duration(seconds) * time.Second
	if err != nil || seconds < 1 || seconds > int(maxTapTime/time.Second) ||
		one.user+one.path == "" || len(one.user)+len(one.path) > maxTapWord {
		http.Error(w, "give user or path (or both), and seconds from 1 to 60", http.StatusBadRequest)
		return
	}
	if !t.replace(one, true) {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many taps", http.StatusTooManyRequests)
		return
	}
	// The tap closes on time even if the client does not read.
	end := time.AfterFunc(length, func() { t.replace(one, false) })
	defer func() { end.Stop(); t.replace(one, false) }()
	w.Header().Set("Content-Type", "application/x-ndjson")
	rc, tick, over := http.NewResponseController(w), time.Tick(tapTurn), time.After(length)
	var buf []byte
	for last := false; ; {
		buf = one.take(buf)
		if _, err := w.Write(buf); err != nil || rc.Flush() != nil || last || t.Draining != nil && t.Draining() {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-over:
			last = true
		case <-tick:
		}
	}
}
