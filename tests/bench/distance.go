package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/relay"
	"github.com/fairlead-proxy/fairlead/tests/try"
)

// flowing is how long bodies flow: 25 round trips of the longer kind, the first few of which
// windows need to grow.
const flowing = 5 * time.Second

// distance is how fast long bodies come from an extension server that is far away, and from clients
// that are.
func distance(ctx context.Context, w *world) {
	ctx, cancel := context.WithCancel(ctx) // ends the relays
	defer cancel()
	for _, trip := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		w.downloads(ctx, trip)
		w.uploads(ctx, trip)
	}
}

// distant is an address that is reached over a long way, each direction of which takes half of a
// round trip, until ctx ends.
func distant(ctx context.Context, to string, trip time.Duration) string {
	r := try.Get(relay.Start(ctx, to))
	r.Delay(trip / 2)
	return r.Address
}

func (w *world) downloads(ctx context.Context, trip time.Duration) {
	far := distant(ctx, w.backend, trip)
	dir := filepath.Join(w.Dir(), fmt.Sprintf("far-%v", trip))
	w.writeManifests(dir, 1, []string{far}, "")
	ours := w.another(ctx, filepath.Base(dir), append(hits(), "--registry=dir:"+dir)...)
	defer ours.part.Kill()
	bare := &peer{name: reverse, backend: far}
	w.startPeer(ctx, bare)
	defer bare.part.Kill()
	w.flows(ctx, fmt.Sprintf("download-%v", trip), []*peer{ours.as(fairlead), bare, {name: direct, address: far}}, http.MethodGet)
}

func (w *world) uploads(ctx context.Context, trip time.Duration) {
	list := w.want(ctx, []string{fairlead, reverse, direct})
	for i, p := range list {
		list[i] = p.as(p.name)
		list[i].address = distant(ctx, p.address, trip)
	}
	w.flows(ctx, fmt.Sprintf("upload-%v", trip), list, http.MethodPost)
}

func (w *world) flows(ctx context.Context, name string, list []*peer, method string) {
	for _, streams := range []int{1, 20} {
		for round := range min(w.o.rounds, 3) {
			for i := range list {
				p := list[(i+round)%len(list)] // nobody is always the first
				w.fresh(ctx, p)
				w.r.add(fmt.Sprintf("%s-%d", name, streams), p.name, round, w.flow(ctx, p.address, method, streams))
			}
		}
	}
}

// flow has endless bodies flow on a new connection that has carried one request: handshakes are not
// part of it, and windows have yet to grow.
func (w *world) flow(ctx context.Context, address, method string, streams int) sample {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: w.tls.Clone(), ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	try.Do(new(endless).exchange(ctx, client, http.MethodGet, "https://"+address+resources+"/one"))
	ctx, cancel := context.WithTimeout(ctx, flowing)
	defer cancel()
	var body endless
	ended := make(chan error, streams)
	for range streams {
		go func() { ended <- body.exchange(ctx, client, method, "https://"+address+resources+"/endless") }() // ends with ctx
	}
	for range streams {
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			try.Do(fmt.Errorf("an endless body has ended: %w", cmp.Or(err, io.EOF)))
		}
	}
	return sample{Flow: float64(body.Load()) / 1e6 / flowing.Seconds()}
}

// endless is bodies that are sent or received, and counts them. What a sender's window lets go
// counts at once: a round trip's worth of five seconds.
type endless struct{ atomic.Int64 }

func (e *endless) exchange(ctx context.Context, client *http.Client, method, url string) (err error) {
	defer try.Catch(&err)
	var body io.Reader
	if method == http.MethodPost {
		body = e
	}
	req := try.Get(http.NewRequestWithContext(ctx, method, url, body))
	req.Header.Set("Authorization", "Bearer "+token(0))
	resp, err := client.Do(req)
	try.Do(err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, url, resp.Status)
	}
	_, err = io.Copy(e, resp.Body)
	return err
}

func (e *endless) Read(b []byte) (int, error) { return e.Write(b) }

func (e *endless) Write(b []byte) (int, error) {
	e.Add(int64(len(b)))
	return len(b), nil
}
