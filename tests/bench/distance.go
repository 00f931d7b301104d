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
)

// flowing is how long bodies flow: 25 round trips of the longer kind, the first few of which
// windows need to grow.
const flowing = 5 * time.Second

// distance is how fast long bodies come from an extension server that is far away, and from clients
// that are.
func distance() scenario {
	return scenario{name: "distance", about: "endless bodies from a backend and from a client 50 and 200 ms away, 1 and 20 streams", run: func(ctx context.Context, w *world, o *options, r *results) error {
		ctx, cancel := context.WithCancel(ctx) // ends the relays
		defer cancel()
		for _, trip := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
			if err := errors.Join(w.downloads(ctx, o, r, trip), w.uploads(ctx, o, r, trip)); err != nil {
				return fmt.Errorf("over %v: %w", trip, err)
			}
		}
		return nil
	}}
}

// downloads has a relay before the extension server.
func (w *world) downloads(ctx context.Context, o *options, r *results, trip time.Duration) error {
	far, err := startRelay(ctx, w.backend, trip)
	if err != nil {
		return err
	}
	dir := filepath.Join(w.Dir(), fmt.Sprintf("far-%v", trip))
	if err := w.writeManifests(dir, 1, []string{far}, ""); err != nil {
		return err
	}
	ours, err := w.another(ctx, filepath.Base(dir), append(hits(), "--registry=dir:"+dir)...)
	if err != nil {
		return err
	}
	defer ours.part.Kill()
	ours.name = fairlead
	bare := &peer{name: reverse, backend: far}
	if err := w.startPeer(ctx, bare); err != nil {
		return err
	}
	defer bare.part.Kill()
	return w.flows(ctx, o, r, fmt.Sprintf("download-%v", trip), []*peer{ours, bare, {name: direct, address: far}}, http.MethodGet)
}

// uploads has one before each peer.
func (w *world) uploads(ctx context.Context, o *options, r *results, trip time.Duration) error {
	list, err := w.want(ctx, []string{fairlead, reverse, direct})
	if err != nil {
		return err
	}
	for i, p := range list {
		far := *p
		if far.address, err = startRelay(ctx, p.address, trip); err != nil {
			return err
		}
		list[i] = &far
	}
	return w.flows(ctx, o, r, fmt.Sprintf("upload-%v", trip), list, http.MethodPost)
}

func (w *world) flows(ctx context.Context, o *options, r *results, name string, list []*peer, method string) error {
	for _, streams := range []int{1, 20} {
		for round := range min(o.rounds, 3) {
			for i := range list {
				p := list[(i+round)%len(list)] // nobody is always the first
				if err := w.fresh(ctx, p); err != nil {
					return err
				}
				s, err := w.flow(ctx, p.address, method, streams)
				if err != nil {
					return fmt.Errorf("measuring %s: %w", p.name, err)
				}
				r.add(fmt.Sprintf("%s-%d", name, streams), p.name, round, s)
			}
		}
	}
	return nil
}

// flow has endless bodies flow on a new connection that has carried one request: handshakes are not
// part of it, and windows have yet to grow.
func (w *world) flow(ctx context.Context, address, method string, streams int) (sample, error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: w.tls.Clone(), ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	if err := new(endless).exchange(ctx, client, http.MethodGet, "https://"+address+resources+"/one"); err != nil {
		return sample{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, flowing)
	defer cancel()
	var body endless
	ended := make(chan error, streams)
	for range streams {
		go func() { ended <- body.exchange(ctx, client, method, "https://"+address+resources+"/endless") }() // ends with ctx
	}
	for range streams {
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			return sample{}, fmt.Errorf("an endless body has ended: %w", cmp.Or(err, io.EOF))
		}
	}
	return sample{Flow: float64(body.Load()) / 1e6 / flowing.Seconds()}, nil
}

// endless is bodies that are sent or received, and counts them. What a sender's window lets go
// counts at once: a round trip's worth of five seconds.
type endless struct{ atomic.Int64 }

func (e *endless) exchange(ctx context.Context, client *http.Client, method, url string) error {
	var body io.Reader
	if method == http.MethodPost {
		body = e
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token(0))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
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
