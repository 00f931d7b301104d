//go:build e2e

package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// stallAfter is how long a client waits for an event: 75 times their interval, and three times as
// long as it takes to detect a dead backend.
const stallAfter = 15 * time.Second

// keepWatching keeps one watch open at a time.
func (l *load) keepWatching(ctx context.Context, rng *rand.Rand) {
	class := pick(0)
	for ctx.Err() == nil {
		t := &task{
			id: "o" + strconv.FormatInt(l.asked.Add(1), 10), class: class, h2: rng.IntN(4) > 0,
			group: l.w.groups[rng.IntN(len(l.w.groups))], caller: l.w.callers[rng.IntN(len(l.w.callers))],
		}
		t.class.name = "remote watch"
		d := l.w.choose(rng.IntN(1000))
		enough := 20 + rng.IntN(300)
		w := t.exchange(d)
		w.Scopes = slices.Concat([]string{"watch:" + t.group.name, "watch:door:" + d.name}, w.Scopes)
		w.Watch, w.Want, w.Begun = true, http.StatusOK, time.Now()
		l.watch(ctx, d, t, &w, enough)
		w.Ended = time.Now()
		if ctx.Err() != nil {
			return
		}
		l.w.checker.end(w)
		if w.Code != http.StatusOK { // refused: wait a little, as clients do
			pause(ctx, 200*time.Millisecond)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

var errStalled = errors.New("nothing came")

// watch reads events until there are enough, or the watch ends.
func (l *load) watch(ctx context.Context, d *door, t *task, w *exchange, enough int) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	guard := time.AfterFunc(stallAfter, func() { cancel(errStalled) })
	defer guard.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.Endpoint.URL+t.group.widgets()+"?watch=1", nil)
	if err != nil {
		panic(err) // our own path is valid
	}
	req.Header.Set(idHeader, t.id)
	maps.Copy(req.Header, t.caller.header)
	failed := func(err error) {
		w.Err, w.GaveUp = err.Error(), errors.Is(context.Cause(ctx), errStalled)
	}
	res, err := l.transport(d, t.caller, t.h2).RoundTrip(req)
	if err != nil {
		failed(err)
		return
	}
	defer res.Body.Close()
	w.Code = res.StatusCode
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		w.Text = string(text)
		return
	}
	head := new(receipt)
	if json.Unmarshal([]byte(res.Header.Get(receiptHeader)), head) != nil {
		// A backend that cuts off its answers or hangs in them sends invented data first. Only an
		// answer that continues, or ends properly, shows that it lied.
		if _, err := io.CopyN(io.Discard, res.Body, 64<<10); err == nil || errors.Is(err, io.EOF) {
			w.Garbled = "no receipt in the header"
		} else {
			failed(err)
		}
		return
	}
	w.Head = head
	lines := bufio.NewReader(res.Body)
	for n := 1; n <= enough; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return
		}
		if err != nil { // also within an event
			failed(err)
			return
		}
		guard.Reset(stallAfter)
		if w.Garbled = wrongEvent(*head, n, line); w.Garbled != "" {
			return
		}
	}
}

// wrongEvent describes what is wrong with the n-th event of a watch, or returns "".
func wrongEvent(want receipt, n int, line []byte) string {
	want.Seq = n
	var e widget
	if err := json.Unmarshal(line, &e); err != nil || e.Receipt == nil {
		return fmt.Sprintf("no event: %.100q", line)
	}
	if !reflect.DeepEqual(*e.Receipt, want) {
		return fmt.Sprintf("%+v, want %+v", *e.Receipt, want)
	}
	if p := payload(want.ID, 100*(want.Seq%20)); e.Payload != p {
		return fmt.Sprintf("%d bytes %.60q, want %d", len(e.Payload), e.Payload, len(p))
	}
	return ""
}
